#!/bin/sh
# msgspec 0.22.0: a dataclass that it has read is not laid out like one that was made.
#
# Expected: `msgspec.convert({"y": 5}, Counts)` gives an object like `Counts(y=5)`, so `vars` of
# the two are equal, with all fields in the order of the class.
# Is: the objects are equal, and `asdict` is right, but `vars` (and so `__dict__`) lacks every
# field that keeps a plain default, which is then found in the class, and has the others in the
# order of the input. A default that a factory makes is there. Code that adds up statistics by
# `vars(...).values()` pairs other fields, or fails.
#
# Output seen: made {'x': 0, 'y': 5, 'z': 1} read {'y': 5}; read in another order
# {'z': 3, 'x': 2}, equal: True
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv || exit 2
venv/bin/pip install -q msgspec==0.22.0 || exit 2
venv/bin/python - <<'PYTHON'
import sys
from dataclasses import asdict, dataclass

import msgspec


@dataclass(frozen=True)
class Counts:
    x: int = 0
    y: int = 0
    z: int = 1


made = Counts(y=5)
read = msgspec.convert({"y": 5}, Counts)
other = msgspec.convert({"z": 3, "x": 2}, Counts)
equal = made == read and asdict(made) == asdict(read)
print("made", vars(made), "read", vars(read))
print("read in another order", vars(other), "equal:", equal)
surprising = vars(read) == {"y": 5} and list(vars(other)) == ["z", "x"]
sys.exit(0 if equal and surprising else 1)
PYTHON
