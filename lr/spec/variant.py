"""A variant of the method as one bundle, and the controller: how far to look ahead from here.

The other extension points are protocols where they are used: `Router` (`protocol.py`), `Segmenter`
(`segmenters.py`), `Verifier` (`verifiers/base.py`), `Drafter` and `AcceptanceRule` on tokens,
`Runner`, `DraftSide` (`engine/request.py`). `docs/variants_steps.md` has all of them in one table,
with the published methods that would plug in there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lr.spec.protocol import Router, SchedulerConfig
from lr.spec.segmenters import Segmenter
from lr.spec.verifiers.base import Verifier
from lr.trace import Stats


class Controller(Protocol):
    """Adapts the run while it runs, from what its trace says."""

    def depth(self, stats: Stats) -> int:
        """How many steps to look ahead from now on: 0 (`paper`: 1) to the depth that the run began
        with; beyond that it is clipped.

        Called after every step that is emitted. What is in work goes on. A decision that looks at
        counts alone is the same in every run of the lockstep driver; one that looks at seconds is
        not.
        """
        ...


@dataclass(frozen=True)
class Variant:
    """What a variant of the algorithm replaces; None: nothing there. Hand it to `Reasoner.run` or
    `Reasoner.generate`.

    `segmenter` is made from the function that maps a token id to its bytes. `schedule` is a
    subclass of `SchedulerConfig` with rules of its own for when drafts and target steps may start.
    """

    verifier: Verifier | None = None
    segmenter: Callable[[Callable[[int], bytes]], Segmenter] | None = None
    router: Router | None = None
    controller: Controller | None = None
    schedule: type[SchedulerConfig] | None = None
