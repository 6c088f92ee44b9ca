"""A tree that narrows: width by level, such as 3, 2, 1, 1. Alternatives pay where a draft step is
about to be judged; far ahead most of them are thrown away.

    lr generate --variant "narrowing(widths=(3, 2, 1, 1))"

One extension point, the schedule: a subclass of `SchedulerConfig` that says how many alternatives
follow a node. Ours; the official code has one width for all levels.
"""

from __future__ import annotations

from lr.spec.protocol import SchedulerConfig
from lr.spec.variant import Variant
from lr.types import require


def narrowing(widths: tuple[int, ...] = (3, 2, 1, 1)) -> Variant:
    """`widths[l]` alternatives after a node of level l, counted from the beginning of its tree; the
    last number holds for all further levels. Unless told otherwise the tree is 4 deep, or deeper if
    there are more numbers.
    """
    good = len(widths) > 0 and all(isinstance(w, int) and w >= 1 for w in widths)
    require(good, "widths", widths, "whole numbers >= 1, one per level")

    class Narrowing(SchedulerConfig):
        def width_at(self, level: int) -> int:
            return widths[min(level, len(widths) - 1)]

    settings = {"width": max(widths), "depth": max(4, len(widths))}
    return Variant(schedule=Narrowing, settings=settings)
