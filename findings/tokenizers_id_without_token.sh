#!/bin/sh
# tokenizers 0.23.3: an id that no token has decodes to nothing.
#
# Expected: an error, as for any index out of range.
# Is: the id is left out without a word, by `decode`, by `decode_batch` and in a stream. Models
# have such ids: the embedding is often padded (Qwen2.5: 151,936 rows, 151,665 tokens), and a
# sampler that draws one of them gives a text that is a token short.
#
# Output seen: decode([0, 99, 1]) 'a b', decode([99]) '', a stream's pieces ['a', None, ' b'].
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q tokenizers==0.23.3 || exit 2
venv/bin/python - <<'PYTHON'
import sys
from tokenizers import Tokenizer, models
from tokenizers.decoders import DecodeStream

tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
whole, alone = tokenizer.decode([0, 99, 1]), tokenizer.decode([99])
batch = tokenizer.decode_batch([[99], [1, 99]])
stream = DecodeStream()
pieces = [stream.step(tokenizer, token) for token in (0, 99, 1)]
print(repr(whole), repr(alone), batch, pieces)
left_out = "".join(piece or "" for piece in pieces) == whole
sys.exit(0 if (whole, alone, batch) == ("a b", "", ["", "b"]) and left_out else 1)
PYTHON
