"""A narrowing tree (ours): width by level, such as 3, 2, 1, 1.

    lr generate --variant "narrowing(widths=(3, 2, 1, 1))"

Alternatives pay for a step that is judged soon; far ahead most of them are thrown away.
One extension point, the schedule: a subclass of `SchedulerConfig` that sets how many
alternatives follow a node. The official code has one width for all levels."""

from __future__ import annotations

from lr.spec.protocol import SchedulerConfig
from lr.spec.variant import Variant
from lr.types import require


def narrowing(widths: tuple[int, ...] = (3, 2, 1, 1)) -> Variant:
    """`widths[l]` alternatives follow a node of level l, counted from the root of its
    tree.

    The last number holds for all further levels. By default the tree is 4 levels deep,
    or as deep as there are numbers if that is more."""
    good = len(widths) > 0 and all(isinstance(w, int) and w >= 1 for w in widths)
    require(good, "widths", widths, "whole numbers >= 1, one per level")

    class Narrowing(SchedulerConfig):
        def width_at(self, level: int) -> int:
            return widths[min(level, len(widths) - 1)]

    settings = {"width": max(widths), "depth": max(4, len(widths))}
    return Variant(schedule=Narrowing, settings=settings)
