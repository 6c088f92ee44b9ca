#!/bin/sh
# tokenizers 0.23.3: a new token gets an id that another token has.
#
# Expected: `add_tokens` gives ids that are free, from the largest id on.
# Is: it counts on from the NUMBER of tokens. If the vocabulary has a hole (three tokens, the
# third one with id 5, say after pruning), the third new token gets id 5 too. No error, no
# warning, the file is saved and read like that: two tokens share an id, the old one decodes as
# the new one, and a model's row 5 means both.
#
# Output seen: {'a': 0, 'b': 1, 'd': 3, 'e': 4, 'c': 5, 'f': 5}; encode("c f") [5, 5],
# decode([5]) f; the same after saving and loading.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q tokenizers==0.23.3 || exit 2
venv/bin/python - <<'PYTHON'
import sys
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 5}, unk_token="a"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
assert tokenizer.add_tokens(["d", "e", "f"]) == 3
tokenizer.save("tokenizer.json")
seen = []
for reader in (tokenizer, Tokenizer.from_file("tokenizer.json")):
    ids = reader.encode("c f").ids
    print(dict(sorted(reader.get_vocab().items(), key=lambda item: (item[1], item[0]))))
    print("encode:", ids, "decode([5]):", reader.decode([5]))
    seen.append(ids == [5, 5] and reader.decode([5]) == "f")
sys.exit(0 if all(seen) else 1)
PYTHON
