#!/bin/sh
# gguf 0.19.0: arrays of the metadata do not come back as they were written.
#
# Expected: GGUFWriter's `add_array` writes a list, GGUFReader gives it back.
# Is: an EMPTY list is not written at all, without a word (a reader that looks for the key finds
# none); a NESTED list is written as such and read FLAT; and a whole number beyond 32 bits is
# taken by `add_array` and refused when the file is written (the type is always INT32; a single
# number has `add_uint64`).
#
# Output seen: keys of the file: t.nested [1, 2, 3], t.plain [1, 2]; t.empty is missing; then
# error: 'i' format requires -2147483648 <= number <= 2147483647
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q gguf==0.19.0 || exit 2
venv/bin/python - <<'PYTHON'
import struct
import sys
from gguf import GGUFReader, GGUFWriter


def write(name, arrays):
    writer = GGUFWriter(name, "llama")
    for key, values in arrays.items():
        writer.add_array(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write("a.gguf", {"t.plain": [1, 2], "t.empty": [], "t.nested": [[1, 2], [3]]})
fields = GGUFReader("a.gguf").fields
seen = {key: field.contents() for key, field in fields.items() if key.startswith("t.")}
print(seen)
try:
    write("b.gguf", {"t.large": [2**40]})
    refused = False
except struct.error as error:
    print("error:", error)
    refused = True
sys.exit(0 if seen == {"t.plain": [1, 2], "t.nested": [1, 2, 3]} and refused else 1)
PYTHON
