"""The kinds of value that stand in a trace file: how each is written, read and checked.

    node   (1, 2, 3)  <->  "1:2.3"          key   64 bits  <->  "0x" and 16 hex digits (JavaScript's numbers have 53 bits)
    step   Step       <->  {"tokens": [5, 9], "pieces": ["a", " b"], "finish": "boundary"}

Beside token ids stand their texts, so that a reader needs no tokenizer: `pieces` of a list of
tokens joined give its text, also where a character's bytes are spread over several tokens; the
`piece` of a single token shows bytes that are no characters as <E2><82>. What a field means in an
event is in `schema.py`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lr.tracing.events import Guess, Node, RoundDetail
from lr.types import Finish, Origin, Role, Step, Verdict

Bytes = Callable[[int], bytes]
"""The exact bytes of a token."""
NODE = re.compile(r"(\d+):(\d+)(?:\.(\d+))?")
KEY = re.compile(r"0x[0-9a-f]{16}")


def node_name(node: Node) -> str:
    """The name of a node. Example: (0, 2, 0) is "0:2", (0, 2, 3) is "0:2.3"."""
    return f"{node[0]}:{node[1]}" + (f".{node[2]}" if node[2] else "")


def node_of(name: str) -> Node:
    """The inverse of `node_name`."""
    found = NODE.fullmatch(name)
    assert found is not None, "checked before"
    return int(found[1]), int(found[2]), int(found[3] or 0)


def pieces_of(tokens: Sequence[int], token_bytes: Bytes) -> list[str]:
    """The text that each token completes; joined, the text of all.

    Example: "é" is C3 A9; tokens "a\\xc3" and "\\xa9b" give "a" and "éb". What never becomes a
    character is U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(token_bytes(token)) for token in tokens]
    rest = decoder.decode(b"", final=True)
    if pieces and rest:
        pieces[-1] += rest
    return pieces


def piece_of(token: int, token_bytes: Bytes) -> str:
    """The text of one token by itself; bytes that are no character show as <E2>."""
    raw = token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "".join(
            char if not 0xDC80 <= ord(char) <= 0xDCFF else f"<{ord(char) - 0xDC00:02X}>"
            for char in raw.decode(errors="surrogateescape")
        )


# Writing


def write_step(step: Step, token_bytes: Bytes) -> dict[str, Any]:
    """A step as JSON."""
    return {
        "tokens": list(step.tokens),
        "pieces": pieces_of(step.tokens, token_bytes),
        "finish": step.finish.value,
    }


def write_verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON."""
    return {"aligned": verdict.aligned, "why": verdict.why, "score": verdict.score}


def write_key(key: int) -> str:
    """64 bits as text."""
    return f"0x{key:016x}"


def write_round(detail: RoundDetail, token_bytes: Bytes) -> dict[str, Any]:
    """The details of a round as JSON."""
    return {
        "offset": detail.offset,
        "guesses": [
            {
                "token": one.token,
                "piece": piece_of(one.token, token_bytes),
                "parent": one.parent,
                "p": one.p,
                "q": one.q,
                "accept": one.accept,
                "uniform": one.uniform,
                "kept": one.kept,
            }
            for one in detail.guesses
        ],
        "coin": detail.coin,
        "coin_key": None if detail.coin_key is None else write_key(detail.coin_key),
        "token": detail.token,
        "piece": piece_of(detail.token, token_bytes),
        "p": detail.p,
        "residual": detail.residual,
        "key": write_key(detail.key),
    }


def read_step(content: dict[str, Any]) -> Step:
    """The inverse of `write_step`."""
    return Step(tuple(content["tokens"]), Finish(content["finish"]))


def read_verdict(content: dict[str, Any]) -> Verdict:
    """The inverse of `write_verdict`."""
    return Verdict(content["aligned"], content["why"], content["score"])


def read_round(content: dict[str, Any]) -> RoundDetail:
    """The inverse of `write_round`."""
    names = ("token", "parent", "p", "q", "accept", "uniform", "kept")
    coin_key = content["coin_key"]
    return RoundDetail(
        content["offset"],
        tuple(Guess(**{name: one[name] for name in names}) for one in content["guesses"]),
        content["coin"],
        None if coin_key is None else int(coin_key, 16),
        content["token"],
        content["p"],
        content["residual"],
        int(content["key"], 16),
    )


# Checking


def is_number(value: Any) -> bool:
    """A finite or infinite number; JSON true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """A whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_node(value: Any) -> bool:
    """The name of a node."""
    return isinstance(value, str) and NODE.fullmatch(value) is not None


def is_key(value: Any) -> bool:
    """64 bits as text."""
    return isinstance(value, str) and KEY.fullmatch(value) is not None


def is_list_of(fits: Callable[[Any], bool], length: int | None = None) -> Callable[[Any], bool]:
    """A list whose items all fit, and of a certain length if one is given."""
    return lambda value: (
        isinstance(value, list)
        and (length is None or len(value) == length)
        and all(fits(one) for one in value)
    )


def has(**fields: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object that has at least these fields, each fitting."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and fits(value[name]) for name, fits in fields.items())
    )


def one_of(values: Sequence[str]) -> Callable[[Any], bool]:
    """One of some words."""
    return lambda value: isinstance(value, str) and value in values


def or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """null, or what fits."""
    return lambda value: value is None or fits(value)


@dataclass(frozen=True)
class FieldType:
    """A kind of value. `says`: in the words of the documentation; `write` takes the value and the
    bytes of tokens.
    """

    says: str
    fits: Callable[[Any], bool]
    write: Callable[[Any, Bytes], Any] = lambda value, _: value
    read: Callable[[Any], Any] = lambda value: value


def nullable(kind: FieldType) -> FieldType:
    """The same, or null (None)."""
    return FieldType(
        f"{kind.says}, or null",
        or_null(kind.fits),
        lambda value, token_bytes: None if value is None else kind.write(value, token_bytes),
        lambda value: None if value is None else kind.read(value),
    )


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _bool(value: Any) -> bool:
    return isinstance(value, bool)


def _lists(value: Any) -> list[list[int]]:
    return [list(one) for one in value]


def _tuples(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(one) for one in value)


_GUESS = has(
    token=is_whole, piece=_text, parent=is_whole, p=is_number, q=is_number, accept=or_null(is_number),
    uniform=or_null(is_number), kept=or_null(_bool),
)  # fmt: skip
_ROUND = has(
    offset=is_whole, guesses=is_list_of(_GUESS), coin=or_null(is_number), coin_key=or_null(is_key),
    token=is_whole, piece=_text, p=is_number, residual=_bool, key=is_key,
)  # fmt: skip
_STEP = has(
    tokens=is_list_of(is_whole), pieces=is_list_of(_text), finish=one_of([f.value for f in Finish])
)
_VERDICT = has(aligned=_bool, why=_text, score=or_null(is_number))

WHOLE = FieldType("a whole number", is_whole)
NUMBER = FieldType("a number", is_number)
TEXT = FieldType("text", _text)
BOOL = FieldType("true or false", _bool)
NODE_NAME = FieldType("a node", is_node, lambda node, _: node_name(node), node_of)
NODES = FieldType(
    "a list of nodes",
    is_list_of(is_node),
    lambda nodes, _: [node_name(node) for node in nodes],
    lambda names: tuple(map(node_of, names)),
)
TOKEN = FieldType("a token id", is_whole)
KEY_TEXT = FieldType(
    "64 bits in hex", is_key, lambda key, _: write_key(key), lambda text: int(text, 16)
)
STEP = FieldType("a step", _STEP, write_step, read_step)
VERDICT = FieldType("a verdict", _VERDICT, lambda verdict, _: write_verdict(verdict), read_verdict)
ROUND = FieldType("a round", _ROUND, write_round, read_round)
ROLE = FieldType(
    "draft or target", one_of([r.value for r in Role]), lambda role, _: role.value, Role
)
ORIGIN = FieldType(
    "accepted, correction, bonus or target",
    one_of([o.value for o in Origin]),
    lambda o, _: o.value,
    Origin,
)
WORK = FieldType("draft, target, judge or score", one_of(["draft", "target", "judge", "score"]))
BLOCKS = FieldType(
    "a list of block numbers", is_list_of(is_whole), lambda blocks, _: list(blocks), tuple
)
PAIRS = FieldType(
    "a list of pairs", is_list_of(is_list_of(is_whole, 2)), lambda rows, _: _lists(rows), _tuples
)
TRIPLES = FieldType(
    "a list of triples", is_list_of(is_list_of(is_whole, 3)), lambda rows, _: _lists(rows), _tuples
)
