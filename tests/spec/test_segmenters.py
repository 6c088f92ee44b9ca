"""Where steps end: tables of token streams, and what holds for every segmenter."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr.options import SegmenterName
from lr.spec.segmenters import make_segmenter

SEGMENTERS = get_args(SegmenterName)

# Tokens are separated by "|"; the one before "#" completes the boundary.
BLANK_LINES = [
    "a|\n\n#",
    "a|\n|\n#",
    "a.|.\n|\nNext#",
    "a.\n\nNext#",
    "\n\n|a|\n\n#",
    "\n\n\n| \t\n\n|a|\n\n#",
    "\n\na\n\n#",
    "\n\na",
    "a\n| \n#",
    "a\n||\n#",
    "||",
    "\n|\n|\n",
    "a|\n|b|\n",
    "a\r\n\r\n#",  # the line ends of Windows
    "a\r|\n\r|\n#",
    "a|\r\n|\r\n#",
    "a\n \n#",
    "a|\n\t\nb#",
    "a\n|\t |\r|\n#",
    "a|\n| ||\v\f\nb#",
    "a\n| b\n| c",
    "a|\n | |b|\n|\n#",
    " \r\n\r\n|\r\na\r\n|\n#",
    "a\r\r|\n",
]
SENTENCES = [
    "Ann has 7|.| Ben#",  # the word of the next sentence comes along
    "Ann has 7.|\n#|Ben",
    "Ann has 7. Ben#",
    "Ann has 7|.",  # it may still become 7.5
    "x = 3|.|14| metres",
    "x = 3|.|14|.| So#",
    "Really?| Yes#",
    "No!|\n#",
    'He said "go."| Then#',
    "(See above.)| Then#",
    "It is *so*.| Then#",
    "primes, e.|g|.| 7, |are odd.| #",
    "(i.e. 7)| or Dr. No| vs. Mr. X",
    "1|.| First| 2.| go#",  # "1." at the beginning of a line is a number, " 2." is not
    "- x\n2. y\n3. z",
    "the answer is \\boxed{A. B}|.|\n#",
    "\\boxed{A. B|. C|}| and on",
    "\\text{Hm. So.}| ok. #",
    "open { brace. Then| more.|\n|\n#",  # a blank line ends it all the same
    "} closed. #|Then",
    "x = 4|\n|\n#",
    "x = 4|\r\n|\r\n#",
    "x = 4\n \t|\n#",
    "\n\n| |\n",
    "\n\nWell|.| #",
    "..|.| #",
    "3.|\t",
    "It is 3.|\t#",
]
FIXED = ["a|b|c#", "a|b", " |\n\n|\n|a#|b", "|a.\n\n|#"]  # three tokens
CASES = {"blank_line": BLANK_LINES, "sentence": SENTENCES, "fixed": FIXED}


def ends_at(tokens, name, length=3):
    segmenter = make_segmenter(name, lambda i: tokens[i], length)
    return next((i for i in range(len(tokens)) if segmenter.feed(i)), None)


@pytest.mark.parametrize(
    "name, text", [(name, text) for name in CASES for text in CASES[name]]
)
def test_where_a_step_ends(name, text):
    marked = text.split("|")
    ends = [i for i, token in enumerate(marked) if token.endswith("#")]
    tokens = [token.removesuffix("#").encode() for token in marked]
    assert ends_at(tokens, name) == (ends[0] if ends else None)


PIECES = '\n|\n\n| |a| b|.|. c|!|7|{|}||\n\nx| So|But,|e.g|1.|ü|"|- '.encode().split(
    b"|"
)
streams = st.lists(st.sampled_from([*PIECES, "ü".encode()[:1]]), max_size=16)


@pytest.mark.parametrize("name", ["blank_line", "sentence"])
@given(tokens=streams)
def test_cutting_bytes_into_other_tokens_moves_no_boundary(name, tokens):
    """The byte at which the boundary completes is the same when every byte is a token
    of its own.
    """
    end = ends_at(tokens, name)
    single = ends_at([bytes([byte]) for byte in b"".join(tokens)], name)
    if end is None or single is None:
        assert end is single
    else:
        before = len(b"".join(tokens[:end]))
        assert before <= single < before + len(tokens[end])


@pytest.mark.parametrize("name", SEGMENTERS)
@given(tokens=streams)
def test_every_step_has_a_visible_character(name, tokens):
    end = ends_at(tokens, name, 2)
    if end is not None:
        assert b"".join(tokens[: end + 1]).strip()
