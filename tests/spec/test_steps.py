"""Boundaries are found on bytes: a table of token streams, and the promise that only
the bytes matter.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lr.spec.write import BlankLineSegmenter

TABLE = [
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


def ends_at(tokens: list[bytes]) -> int | None:
    segmenter = BlankLineSegmenter(lambda i: tokens[i])
    return next((i for i in range(len(tokens)) if segmenter.feed(i)), None)


@pytest.mark.parametrize(("tokens", "expected"), TABLE)
def test_boundary_table(tokens: list[bytes], expected: int | None) -> None:
    assert ends_at(tokens) == expected


@given(
    st.lists(
        st.sampled_from(
            [b"\n", b"\n\n", b"a", b" ", b"b.\n", b"", b"\n\nx", "ü".encode()]
        ),
        max_size=12,
    )
)
def test_cutting_bytes_into_other_tokens_moves_no_boundary(tokens: list[bytes]) -> None:
    """The byte at which the boundary completes is the same when every byte is a token
    of its own.
    """
    whole = ends_at(tokens)
    single = ends_at([bytes([byte]) for token in tokens for byte in token])
    if whole is None:
        assert single is None
    else:
        assert single is not None
        assert (
            len(b"".join(tokens[:whole])) <= single < len(b"".join(tokens[: whole + 1]))
        )


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"a", b" ", b"b.\n"]), max_size=12))
def test_every_step_has_a_visible_character(tokens: list[bytes]) -> None:
    end = ends_at(tokens)
    if end is not None:
        assert b"".join(tokens[: end + 1]).strip()
