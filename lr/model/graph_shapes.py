"""The shapes of forwards that are recorded as graphs: how many rows, how long their branches may
be.

A few of each, every one the next larger power or so: a batch of 5 rows wastes three of a shape of
8, which costs nothing while the weights are what is read. The spans matter to attention on gathered
pages, which reads the whole span; kernels that read a block table stop at each row's length. It
knows no tensor. Read next: `graphs.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

from lr.types import require


@dataclass(frozen=True)
class GraphShapes:
    """The shapes that are recorded: a number of rows and a number of tokens that a branch may have,
    each the next larger one.

    `after`: how often a shape must be asked for before it is recorded. `largest`: the most that
    rows times tokens may be, for attention that gathers all of them (None: no limit).
    """

    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32)
    spans: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    after: int = 8
    largest: int | None = None

    def __post_init__(self) -> None:
        for name, sizes in (("rows", self.rows), ("spans", self.spans)):
            rising = len(sizes) > 0 and sizes[0] > 0 and all(a < b for a, b in pairwise(sizes))
            require(rising, name, sizes, "whole numbers > 0, each larger than the one before")
        require(self.after >= 0, "after", self.after, "a whole number >= 0")
        require(
            self.largest is None or self.largest > 0,
            "largest",
            self.largest,
            "a whole number > 0, or None",
        )

    def smallest(self, rows: int, span: int) -> tuple[int, int] | None:
        """The smallest shape for so many rows of branches of at most `span` tokens. None: there is
        none.
        """
        fitting = [(n, s) for n, s in product(self.rows, self.spans) if n >= rows and s >= span]
        shape = min(fitting, default=None)
        return (
            None
            if shape is None or (self.largest is not None and shape[0] * shape[1] > self.largest)
            else shape
        )
