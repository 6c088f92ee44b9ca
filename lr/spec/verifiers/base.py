"""The verifier's interface: it decides whether a draft step means the same as the
target's step.

A verifier judges pairs (prefix, draft step, target step) in batches; each verdict
depends only on its own pair. `requires` states what a pair must hold, so the scheduler
knows whether the target must write a step first. Cut steps and ends of text are decided
by the scheduler, not by a verifier.

To write a verifier, subclass `Verifier` and define `name` and `judge`, as
`ExactVerifier` below does. Read next: `lr/spec/verifiers/judge.py`,
`lr/spec/verifiers/named.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

from lr.errors import ProtocolError
from lr.kvcache.branch import common_length
from lr.spec.checks import check_verdicts, refuse
from lr.spec.protocol import Choice, Note, Place, first_aligned, silent
from lr.types import Finish, Step, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from lr.rng import Stream


class Requires(Flag):
    """What a pair must hold in addition to its prefix and draft step. Combine values
    with `|`."""

    NOTHING = 0
    TARGET_STEP = auto()
    """The target's own step from the same prefix."""
    TARGET_LOGPROBS = auto()
    """The target's log-probabilities of the draft step's tokens, from a prefill of that
    step."""
    HIDDEN = auto()
    """The target's last hidden states at the draft step's tokens."""
    SAMPLING_LOGPROBS = auto()
    """The log-probabilities of the draft step's tokens under the distributions from
    which target and draft sample (temperature and filters applied), not under the raw
    logits."""


@dataclass(frozen=True)
class Pair:
    """Two versions of one step. `prefix` holds the token ids before it, including the
    prompt.

    Four fields are set if the verifier requires them. `logprobs[i]`: the natural
    log-probability of the draft's token i given all tokens before it, under the
    target's raw logits. `hidden` [t, e]: the target's last hidden states at these
    tokens. `target_sampling`, `draft_sampling`: log p and log q under the sampling
    distributions; `draft_sampling` is empty for a step that no model drew. `stream`:
    the randomness of this pair, for random decisions: `uniform(pair.stream.key(0))`;
    None if no models run. `note` records in the trace. `index`: the step's number in
    the answer, or 0. `prompt`: how many tokens of `prefix` are the prompt.
    """

    prefix: tuple[int, ...]
    draft: Step
    target: Step | None = None
    logprobs: tuple[float, ...] | None = None
    hidden: Tensor | None = None
    target_sampling: tuple[float, ...] | None = None
    draft_sampling: tuple[float, ...] | None = None
    stream: Stream | None = field(default=None, compare=False)
    note: Note = field(default=silent, compare=False, repr=False)
    index: int = field(default=0, compare=False)
    prompt: int = 0

    @property
    def target_step(self) -> Step:
        """The target's step. Raises `ProtocolError` if the pair has none."""
        if self.target is None:
            raise ProtocolError(
                "this pair has no target step, and the verifier needs one: its `requires` must "
                "include Requires.TARGET_STEP."
            )
        return self.target


class Verifier(ABC):
    """Judges pairs, and chooses among the alternatives of a step. Write `name` and
    `judge`; the rest has defaults.

    `requires`: what pairs given to `judge` must hold; without TARGET_STEP the target
    writes a step only after a rejection. `early_requires`: the same for `judge_early`.
    `parallel`: the target writes its step at once all the same, so a rejection, or an
    unsure early verdict, costs no time. `passes`: forwards of its own models, or
    requests, so far.
    """

    name: str  # in reports
    requires: Requires = Requires.TARGET_STEP
    early_requires: Requires | None = None
    parallel: bool = False
    passes: int = 0

    @abstractmethod
    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, in order, each independent of the other pairs."""

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        """A cheap first pass, before the target's step is written; None: not sure."""
        return [None] * len(pairs)

    def choose(self, place: Place) -> Choice:
        """The index in `place.drafts` of the alternative to accept; None: emit the
        target's step; `WAIT`: ask again with one more alternative (not if `place.more`
        is 0).

        Must be a pure function. It is called with one alternative, then with two, and
        so on, until it does not wait. Only an aligned alternative can be chosen.
        """
        return first_aligned(place)


class ExactVerifier(Verifier):
    """Accepts a step if its token ids, including end of sequence, equal the target's.
    With it Lookahead Reasoning at temperature 0 emits what greedy decoding of the
    target emits.
    """

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for draft, target in (
            (pair.draft.tokens, pair.target_step.tokens) for pair in pairs
        ):
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


def check_verifier(verifier: object) -> Verifier:
    """`verifier`, with the attributes that decide when the target writes."""
    if not isinstance(verifier, Verifier):
        expected = "an object of a class derived from lr.spec.verifiers.base.Verifier"
        refuse("verifier", verifier, verifier, expected)
    name = getattr(verifier, "name", None)
    if not isinstance(name, str):
        refuse("verifier", verifier, f"name = {name!r}", "a text: the class's `name`")
    if not isinstance(verifier.requires, Requires):
        refuse("verifier", verifier, f"requires = {verifier.requires!r}", "Requires")
    early = verifier.early_requires
    value = f"early_requires = {early!r}"
    if early is not None and (
        not isinstance(early, Requires) or Requires.TARGET_STEP in early
    ):
        expected = "None, or Requires without TARGET_STEP, which is not there yet"
        refuse("verifier", verifier, value, expected)
    # The two belong together: one alone is forgotten or misspelt.
    writes_early = type(verifier).judge_early is not Verifier.judge_early
    classes = type(verifier).__mro__[: type(verifier).__mro__.index(Verifier)]
    states_early = any("early_requires" in vars(v) for v in (verifier, *classes))
    unstated = writes_early and not states_early
    unwritten = early is not None and not writes_early
    if unstated or unwritten:
        value += f", judge_early {'' if writes_early else 'not '}defined"
        refuse("verifier", verifier, value, "both of them, or neither")
    return verifier


def verdict_by_form(draft: Step, target: Step) -> Verdict | None:
    """The verdict that follows from how the two steps end; None: the verifier must
    decide.

    A cut step (`Finish.LENGTH`) is incomplete: a cut draft is never accepted, and a cut
    target step accepts nothing. A step that ends the text never equals one that does
    not.
    """
    if draft.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the draft step was cut")
    if target.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the target step was cut")
    if (draft.finish is Finish.EOS) != (target.finish is Finish.EOS):
        ending = "draft" if draft.finish is Finish.EOS else "target"
        return Verdict(aligned=False, why=f"only the {ending} step ends the text")
    return None


def verdicts_of(
    verifier: Verifier, pairs: Sequence[Pair], *, early: bool = False
) -> list[Verdict]:
    """The verifier's verdicts, checked; with `early`, those of its first pass, which
    may be None."""
    if not pairs:
        return []
    judge = verifier.judge_early if early else verifier.judge
    verdicts: list[Any] = judge(pairs)
    check_verdicts(verifier, verdicts, len(pairs), early=early)
    return verdicts


def all_verdicts_of(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict | None]:
    """As `verdicts_of`, but pairs may lack the target step; None: the verdict needs
    it."""
    early = bool(verifier.requires & Requires.TARGET_STEP)
    alone = [pair for pair in pairs if pair.target is None]
    compared = [pair for pair in pairs if pair.target is not None]
    verdicts_alone = iter(verdicts_of(verifier, alone, early=early))
    verdicts = iter(verdicts_of(verifier, compared))
    return [next(verdicts_alone if pair.target is None else verdicts) for pair in pairs]
