"""A variant of the method as one bundle, and those of its parts that have no other home.
`docs/variants_steps.md` has all extension points in one table, with the module of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lr.spec.acceptance import AcceptanceRule
from lr.spec.protocol import Chooser, NodeId, Note, Router, SchedulerConfig, silent
from lr.spec.runner import Runner
from lr.spec.token_sd import Drafter
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.write import Segmenter
from lr.trace import Stats
from lr.types import SamplingParams, Step


@dataclass(frozen=True)
class StepStats(Stats):
    """The statistics as of a step, and the mean entropies, in nats, of the distributions from which
    the tokens of its first draft step and of the target's step were drawn (None: not asked for, no
    such step, or not drawn token by token).
    """

    draft_entropy: float | None = None
    target_entropy: float | None = None


class Controller(Protocol):
    """Adapts the run while it runs, from what its trace says. Only `depth` need be there.
    `entropies`: whether it looks at them; they take a little time in every pass.
    """

    entropies: bool = False

    def depth(self, stats: StepStats) -> int:
        """How many steps to look ahead from now on: 0 (`paper`: 1) to the run's own depth; clipped.

        Called after every step that is emitted. What is in work goes on. A decision by counts alone
        is the same in every run of the lockstep driver; one by seconds is not.
        """
        ...

    def tokens(self, stats: StepStats) -> int | None:
        """How many tokens the target's drafter may propose in a round (k) in the steps that begin
        from now on; None, and at most: as many as the run says. Asked after `depth`.
        """
        return None

    def width(self, stats: StepStats) -> int | None:
        """How many alternatives may follow a node, at least 1; None, and at most: as many as the
        run and its schedule say. It holds where drafts cannot have begun before: in a new tree, and
        where a window slides so many steps ahead as it is deep. So who is faster changes nothing.
        """
        return None


MayFollow = Callable[[NodeId, Step, Sequence[float]], bool]
"""Whether drafts may follow a draft step before it is accepted, from the node that it leads to and
the log-probabilities of its tokens under the draft's sampling distribution (none for a step that no
model drew). Must be a pure function; it is asked once for each step."""


class StepProposer(Protocol):
    """Writes draft steps without a model: retrieval, an n-gram of steps, a recorded answer."""

    def propose(self, tokens: Sequence[int], width: int) -> Sequence[Sequence[int] | None]:
        """Up to `width` alternatives for the step after `tokens`, the prompt included; each is a
        step's token ids, boundary included. None, or one that does not end a step: the draft model
        writes that alternative. Must be a pure function of `tokens` and `width`.
        """
        ...


@dataclass(frozen=True)
class Correction:
    """The target is about to replace rejected draft steps. `prefix`: the tokens before them.
    `rejected`: what the verifier saw of them (nothing of a cut step). `sampling`: how both models
    sample. `attempt`: how many steps of the target were not kept before. `logprobs`: of the
    target's step under the distribution from which it samples, when the corrector is asked whether
    it stays. `note` tells the trace something.
    """

    prefix: tuple[int, ...]
    rejected: tuple[Pair, ...]
    sampling: SamplingParams
    attempt: int = 0
    logprobs: tuple[float, ...] = ()
    note: Note = field(default=silent, compare=False, repr=False)


class Corrector(Protocol):
    """How the target writes the step that replaces rejected ones. It needs a verifier that needs no
    target step: only then is the step written after the rejection. Subclass it for the defaults.
    """

    def begin(self, correction: Correction) -> Sequence[int]:
        """The first tokens of a rejected draft step that stay, from which the target goes on."""
        return ()

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        """Whether the target's step stays; if not, it draws another. `number` is uniform on [0, 1)
        and new in every attempt. Must be a pure function.
        """
        return True


@dataclass(frozen=True)
class Variant:
    """What a variant replaces; None: nothing there. For `Reasoner.generate` and `Reasoner.run`.

    `segmenter` is made from the function that maps a token id to its bytes. `schedule` is a
    subclass of `SchedulerConfig` with rules of its own for when drafts and target steps may start,
    and how many alternatives. `controller` is a function (or class) of the question, or of nothing,
    that makes one for each answer; an object is used by all. `drafter` is made from the runner of
    the draft model (None in a mode without one) and the sampling parameters.

    `costs`: what a verdict ("judge"), reading a draft step to judge it ("score"), a draft step
    ("draft") and a step of the target ("target") take on the simulated clock, in plain target
    steps, where that is not what `lr theory` is told (`lr/variants/clock.py`).

    `settings` are options of `generate` that the method asks for; what the caller gives wins (on
    the command line and in the stepper: what differs from the default). `name` says how the variant
    was named, `file` where it is defined, if that is no module (`lr/variants/loading.py` fills them
    in).
    """

    verifier: Verifier | None = None
    segmenter: Callable[[Callable[[int], bytes]], Segmenter] | None = None
    router: Router | None = None
    controller: Controller | Callable[..., Controller] | None = None
    schedule: type[SchedulerConfig] | None = None
    chooser: Chooser | None = None
    proposer: StepProposer | None = None
    corrector: Corrector | None = None
    may_follow: MayFollow | None = None
    drafter: Callable[[Runner | None, SamplingParams], Drafter] | None = None
    rule: AcceptanceRule | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    name: str | None = None
    file: str | None = None
