#!/bin/sh
# llguidance 1.9.1: valid JSON that a schema allows and the grammar does not.
#
# Expected: a grammar made from a JSON schema takes every JSON text that the schema takes, but
# for the order of keys.
# Is: it takes one form of several. With bounds a number may have no exponent (1e5 is taken by a
# plain number, 1e-5 is refused between 0 and 1); the escapes \/ and \u0041 are refused in any
# string; and where the schema lists 1.0, "1" is taken and "1.0" is not. A model that continues
# JSON it has read, or n-gram drafts out of a prompt, meet these forms: the draft is rejected, or
# the model is forced off the text that it copies.
#
# Output seen: number 1e5 taken; number in [0, 1]: 0.00001 taken, 1e-5 refused; strings "/" taken,
# "\/" and "\u0041" refused; one of [1.0]: 1 taken, 1.0 refused.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q llguidance==1.9.1 || exit 2
venv/bin/python - <<'PYTHON'
import sys

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

LETTERS = [chr(code) for code in range(32, 127)]


class Letters:
    """A tokenizer of one token per printable character."""

    eos_token_id = len(LETTERS)
    bos_token_id = None
    tokens = [letter.encode() for letter in LETTERS] + [b"\xff<end>"]
    special_token_ids = [len(LETTERS)]

    def __call__(self, text):
        text = text.decode() if isinstance(text, bytes) else text
        return [LETTERS.index(letter) for letter in text]


tokenizer = LLTokenizer(TokenizerWrapper(Letters()))


def takes(schema, text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    ids = [LETTERS.index(letter) for letter in text]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


number, share = {"type": "number"}, {"type": "number", "minimum": 0, "maximum": 1}
string, one = {"type": "string"}, {"enum": [1.0]}
cases = [
    (number, "1e5", True), (share, "0.00001", True), (share, "1e-5", False),
    (string, '"/"', True), (string, r'"\/"', False), (string, r'"\u0041"', False),
    (one, "1", True), (one, "1.0", False),
]
seen = [takes(schema, text) for schema, text, _ in cases]
for (schema, text, _), taken in zip(cases, seen):
    print(schema, text, "taken" if taken else "refused")
sys.exit(0 if seen == [taken for _, _, taken in cases] else 1)
PYTHON
