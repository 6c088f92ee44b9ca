"""A variant of the method as one bundle, and the parts that no other module defines.
`docs/variants_steps.md` lists all extension points in a table, with the module of each.
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
    """The statistics up to a step, and the mean entropies, in nats, of the
    distributions from which its first draft step and target step were drawn (None: not
    requested or not drawn by tokens).
    """

    draft_entropy: float | None = None
    target_entropy: float | None = None


class Controller(Protocol):
    """Adapts the settings during a run, based on its trace. Only `depth` is required.
    `entropies`: whether it reads them; they cost a little time in every pass.
    """

    entropies: bool = False

    def depth(self, stats: StepStats) -> int:
        """How many steps to look ahead from now on, clipped to 0 (`paper`: 1) .. the
        run's depth.

        Called after every emitted step. Work that has begun continues. A decision based
        on counts is the same in every run of the lockstep driver; one based on seconds
        is not.
        """
        ...

    def tokens(self, stats: StepStats) -> int | None:
        """The most tokens per round (k) for the target's drafter in steps that begin
        from now on, up to the run's own number (also used for None). Called after
        `depth`.
        """
        return None

    def width(self, stats: StepStats) -> int | None:
        """How many alternatives may follow a node: from 1 to the number of the run and
        its schedule (also used for None). It applies where no draft can have begun
        before: in a new tree, and `depth` steps ahead in a sliding window. So timing
        changes nothing.
        """
        return None


MayFollow = Callable[[NodeId, Step, Sequence[float]], bool]
"""Whether drafts may follow a draft step before it is accepted. Arguments: the node
that it leads to, the step, and the log-probabilities of its tokens under the draft's
sampling distribution (empty for a step that no model drew). Must be a pure function; it
is called once per step."""


class StepProposer(Protocol):
    """Writes draft steps without a model: retrieval, an n-gram of steps, a recorded
    answer."""

    def propose(
        self, tokens: Sequence[int], width: int
    ) -> Sequence[Sequence[int] | None]:
        """Up to `width` alternatives for the step after `tokens`, which include the
        prompt. Each is the token ids of a step, including its boundary. For None, or
        tokens that do not end a step, the draft model writes that alternative. Must be
        a pure function of `tokens` and `width`.
        """
        ...


@dataclass(frozen=True)
class Correction:
    """What a `Corrector` is told about the target's step that replaces rejected draft
    steps.

    `prefix`: the tokens before them. `rejected`: what the verifier saw of them (nothing
    of a cut step). `sampling`: how both models sample. `attempt`: how many steps of the
    target were discarded before. `logprobs` (only in `keep`): of the target's step
    under its sampling distribution. `note` records in the trace.
    """

    prefix: tuple[int, ...]
    rejected: tuple[Pair, ...]
    sampling: SamplingParams
    attempt: int = 0
    logprobs: tuple[float, ...] = ()
    note: Note = field(default=silent, compare=False, repr=False)


class Corrector(Protocol):
    """How the target writes the step that replaces rejected ones. It needs a verifier
    that needs no target step: only then is the step written after the rejection.
    Subclass it for the defaults.
    """

    def begin(self, correction: Correction) -> Sequence[int]:
        """The first tokens of a rejected draft step to keep; the target continues after
        them."""
        return ()

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        """Whether to keep the target's step; if not, the target draws another. `number`
        is uniform on [0, 1) and new in every attempt. Must be a pure function.
        """
        return True


@dataclass(frozen=True)
class Variant:
    """The parts that a variant replaces (None: the usual part), for `Reasoner.generate`
    and `run`.

    `segmenter` makes one from the function that maps a token id to its bytes.
    `schedule` is a subclass of `SchedulerConfig` with its own rules for when drafts and
    target steps may start and how many alternatives there are. `controller` is a
    controller for all answers, or a function (or class) of the question or of nothing
    that makes one per answer. `drafter` makes one from the runner of the draft model
    (None in a mode without one) and the sampling parameters.

    `costs`: times on the simulated clock, in plain target steps, that differ from what
    `lr theory` assumes (`lr/variants/clock.py`): of a verdict ("judge"), of reading a
    draft step to judge it ("score"), of a draft step ("draft") and of a target step
    ("target").

    `settings` are options of `generate` that the method needs; options of the caller
    win (on the command line and in the stepper: options that differ from the default).
    `name` is the name by which the variant was loaded, `file` the file that defines it,
    if that is not a module (`lr/variants/loading.py` sets both).
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
