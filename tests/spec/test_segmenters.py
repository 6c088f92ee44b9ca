"""Where steps end: tables of token streams, and what holds for every segmenter."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reasoner_kit import write_checkpoint

from lr.options import SegmenterName
from lr.reasoner import Reasoner
from lr.spec.segmenters import FixedSegmenter, SentenceSegmenter, make_segmenter
from lr.spec.write import BlankLineSegmenter, Segmenter

Make = Callable[[Callable[[int], bytes]], Segmenter]
SEGMENTERS = get_args(SegmenterName)

BLANK_LINES = [
    # tokens, index of the token that completes the boundary (None: the step goes on)
    ([b"a", b"\n\n"], 1),
    ([b"a", b"\n", b"\n"], 2),
    ([b"a.", b".\n", b"\nNext"], 2),
    ([b"a.\n\nNext"], 0),
    ([b"\n\n", b"a", b"\n\n"], 2),
    ([b"\n\n\n", b" \t\n\n", b"a", b"\n\n"], 3),
    ([b"\n\na\n\n"], 0),
    ([b"\n\na"], None),
    ([b"a\n", b" \n"], None),
    ([b"a", b"\r\n", b"\r\n"], None),
    ([b"a\n", b"", b"\n"], 2),
    ([b"", b"", b""], None),
    ([b"\n", b"\n", b"\n"], None),
    (["é".encode()[:1], "é".encode()[1:], b"\n\n"], 2),
    ([b"a", b"\n", b"b", b"\n"], None),
]
SENTENCES = [
    # tokens, index of the token that completes the boundary (None: the step goes on)
    ([b"Ann has 7", b".", b" Ben"], 2),  # the word of the next sentence comes along
    ([b"Ann has 7.", b"\n", b"Ben"], 1),
    ([b"Ann has 7. Ben"], 0),
    ([b"Ann has 7", b"."], None),  # it may still become 7.5
    ([b"x = 3", b".", b"14", b" metres"], None),
    ([b"x = 3", b".", b"14", b".", b" So"], 4),
    ([b"Really?", b" Yes"], 1),
    ([b"No!", b"\n"], 1),
    ([b'He said "go."', b" Then"], 1),
    ([b"(See above.)", b" Then"], 1),
    ([b"It is *so*.", b" Then"], 1),
    ([b"primes, e.", b"g", b".", b" 7, ", b"are odd.", b" "], 5),
    ([b"(i.e. 7)", b" or Dr. No", b" vs. Mr. X"], None),
    (
        [b"1", b".", b" First", b" 2.", b" go"],
        4,
    ),  # "1." at the beginning of a line is a number, " 2." is not
    ([b"- x\n2. y\n3. z"], None),
    ([b"the answer is \\boxed{A. B}", b".", b"\n"], 2),
    ([b"\\boxed{A. B", b". C", b"}", b" and on"], None),
    ([b"\\text{Hm. So.}", b" ok. "], 1),
    (
        [b"open { brace. Then", b" more.", b"\n", b"\n"],
        3,
    ),  # a blank line ends it all the same
    ([b"} closed. ", b"Then"], 0),
    ([b"x = 4", b"\n", b"\n"], 2),
    ([b"\n\n", b" ", b"\n"], None),
    ([b"\n\nWell", b".", b" "], 2),
    ([b"..", b".", b" "], 2),
    (["né".encode()[:2], "né".encode()[2:], b".", b" "], 3),
    ([b"3.", b"\t"], None),
    ([b"It is 3.", b"\t"], 1),
]
FIXED = [  # three tokens
    ([b"a", b"b", b"c"], 2),
    ([b"a", b"b"], None),
    ([b" ", b"\n\n", b"\n", b"a", b"b"], 3),
    ([b"", b"a.\n\n", b""], 2),
]


def ends_at(tokens: list[bytes], make: Make) -> int | None:
    segmenter = make(lambda i: tokens[i])
    return next((i for i in range(len(tokens)) if segmenter.feed(i)), None)


@pytest.mark.parametrize(("tokens", "expected"), BLANK_LINES)
def test_blank_lines(tokens: list[bytes], expected: int | None) -> None:
    assert ends_at(tokens, BlankLineSegmenter) == expected


@pytest.mark.parametrize(("tokens", "expected"), SENTENCES)
def test_sentences(tokens: list[bytes], expected: int | None) -> None:
    assert ends_at(tokens, SentenceSegmenter) == expected


@pytest.mark.parametrize(("tokens", "expected"), FIXED)
def test_fixed_length(tokens: list[bytes], expected: int | None) -> None:
    assert ends_at(tokens, lambda read: FixedSegmenter(read, 3)) == expected


ON_BYTES: dict[str, Make] = {
    "blank_line": BlankLineSegmenter,
    "sentence": SentenceSegmenter,
}
PIECES = [
    b"\n",
    b"\n\n",
    b" ",
    b"a",
    b" b",
    b".",
    b". c",
    b"!",
    b"7",
    b"{",
    b"}",
    b"",
    b"\n\nx",
    b" So",
    b"But,",
]
PIECES += [b"e.g", b"1.", "ü".encode(), "ü".encode()[:1], b'"', b"- "]
streams = st.lists(st.sampled_from(PIECES), max_size=16)


@pytest.mark.parametrize("name", ON_BYTES)
@given(tokens=streams)
def test_cutting_bytes_into_other_tokens_moves_no_boundary(
    name: str, tokens: list[bytes]
) -> None:
    """The byte at which the boundary completes is the same when every byte is a token
    of its own.
    """
    whole = ends_at(tokens, ON_BYTES[name])
    single = ends_at(
        [bytes([byte]) for token in tokens for byte in token], ON_BYTES[name]
    )
    if whole is None:
        assert single is None
    else:
        assert single is not None
        assert (
            len(b"".join(tokens[:whole])) <= single < len(b"".join(tokens[: whole + 1]))
        )


@pytest.mark.parametrize("name", SEGMENTERS)
@given(tokens=streams)
def test_every_step_has_a_visible_character(
    name: SegmenterName, tokens: list[bytes]
) -> None:
    end = ends_at(tokens, lambda read: make_segmenter(name, read, 2))
    if end is not None:
        assert b"".join(tokens[: end + 1]).strip()


@pytest.fixture(scope="module")
def reasoner(tmp_path_factory: pytest.TempPathFactory) -> Reasoner:
    folder = tmp_path_factory.mktemp("checkpoints")
    target, draft = (
        write_checkpoint(folder / "target", seed=1, layers=2),
        write_checkpoint(folder / "draft", seed=2),
    )
    return Reasoner(target, draft, "exact", dtype=torch.float64)


@pytest.mark.parametrize("segmenter", SEGMENTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_exact_lookahead_is_plain_decoding(
    reasoner: Reasoner, segmenter: str, temperature: float
) -> None:
    """And the steps are cut at the same places: one seed, one segmentation."""
    how = {
        "segmenter": segmenter,
        "segment_tokens": 7,
        "temperature": temperature,
        "max_tokens": 50,
    }
    plain = reasoner.generate("How many?", mode="ar", **how)
    for mode in ("lr", "lr+sd"):
        ahead = reasoner.generate(
            "How many?",
            mode=mode,
            acceptance="match",
            coupling="shared",
            depth=3,
            **how,
        )
        assert ahead.tokens == plain.tokens
        assert [step.tokens for step in ahead.steps] == [
            step.tokens for step in plain.steps
        ]
