"""From the name of a segmenter to the segmenter. A new one is added here, or handed in as part of a
`Variant`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lr.spec.segmenters.discourse import DiscourseSegmenter
from lr.spec.segmenters.fixed import FixedSegmenter
from lr.spec.segmenters.sentence import SentenceSegmenter
from lr.spec.steps import BlankLineSegmenter, Segmenter

SegmenterName = Literal["blank_line", "sentence", "fixed", "discourse"]


def make_segmenter(
    name: SegmenterName, token_bytes: Callable[[int], bytes], segment_tokens: int
) -> Segmenter:
    """The segmenter of that name; `segment_tokens` is the length of a step for "fixed" and unused
    elsewhere.
    """
    if name == "sentence":
        return SentenceSegmenter(token_bytes)
    if name == "fixed":
        return FixedSegmenter(token_bytes, segment_tokens)
    if name == "discourse":
        return DiscourseSegmenter(token_bytes)
    return BlankLineSegmenter(token_bytes)
