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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import partial
from typing import Any, TypeVar

from lr.kvcache.branch import common_length
from lr.rng import Stream
from lr.spec.checks import VariantError, check_names, check_verdicts, refuse
from lr.types import Finish, Role, Step, Verdict

Decode = Callable[[Sequence[int]], str]  # token ids to text
T = TypeVar("T")


class Requires(Flag):
    """The evidence that a verifier, a rule or a drafter asks for; nothing is computed or
    kept without. Combine values with `|`. A rule or a drafter finds LOGITS and HIDDEN
    in the proposal; the others are for verifiers."""

    NOTHING = 0
    TARGET_STEP = auto()
    """The target's own step from the same prefix."""
    OWN_LOGPROBS = auto()
    """The target's log-probabilities of that step, from writing it."""
    TARGET_LOGPROBS = auto()
    """The target's log-probabilities of the draft step's tokens, from a prefill of that
    step."""
    DRAFT_LOGPROBS = auto()
    """The draft's own log-probabilities of these tokens, from writing them."""
    LOGITS = auto()
    """The target's raw logits at every place of the draft: before each token and after
    the last."""
    HIDDEN = auto()
    """The target's hidden states at the same places, after the layer that `layer` names:
    "norm" (the last one), or "layers.12"."""


class TakesEvidence:
    """A part that requires evidence; hidden states after `layer`."""

    requires: Requires = Requires.NOTHING
    layer: str = "norm"


NEEDS_READING = Requires.TARGET_LOGPROBS | Requires.LOGITS | Requires.HIDDEN
"""What the target has to read a draft step for."""


@dataclass(frozen=True)
class Pair:
    """Two versions of one step. `prefix` holds the token ids before it, including the
    prompt.

    Some fields are set if the verifier requires them. `logprobs[i]`: the natural
    log-probability of the draft's token i given all tokens before it, under the
    target's raw logits; `draft_logprobs`: under the draft's, empty for a step that no
    model drew; `own_logprobs`: of the target's step, under its own. Row i of `logits`
    [t + 1, v] and `hidden` [t + 1, e] stands before the draft's token i.
    `stream`: the randomness of this pair, for random decisions:
    `uniform(pair.stream.key(0))`; None if no models run. `index`: the step's number in
    the answer, or 0. `prompt`: how many tokens of `prefix` are the prompt.
    """

    prefix: tuple[int, ...]
    draft_step: Step
    own_step: Step | None = None  # the target's
    logprobs: tuple[float, ...] | None = None
    draft_logprobs: tuple[float, ...] | None = None
    own_logprobs: tuple[float, ...] | None = None
    # Tensors; this file needs no torch.
    logits: Any = field(default=None, compare=False)
    hidden: Any = field(default=None, compare=False)
    stream: Stream | None = field(default=None, compare=False)
    index: int = field(default=0, compare=False)
    prompt: int = 0

    @property
    def target_step(self) -> Step:
        """The target's step, which the verifier must require."""
        return _required(self.own_step, "TARGET_STEP")

    def logs(self, role: Role) -> tuple[float, ...]:
        """The log-probabilities of the draft step under a model; the draft's are empty
        for a step that no model drew."""
        logs = self.logprobs if role is Role.TARGET else self.draft_logprobs
        return _required(logs, f"{role.name}_LOGPROBS")


def _required(value: T | None, name: str) -> T:
    if value is None:
        raise VariantError(f"the verifier's `requires` must include Requires.{name}.")
    return value


class Verifier(ABC, TakesEvidence):
    """Judges pairs, and chooses among the alternatives of a step. Write `name` and
    `judge`; the rest has defaults.

    `requires`: what pairs given to `judge` must hold (`layer`: hidden states of which
    layer); without TARGET_STEP the target writes a step only after a rejection.
    `passes`: forwards of its own models, or requests, so far. `lossless`: whatever the
    draft writes, the steps that are emitted have the target's distribution (`lr check`
    adds it up: `theory/step_law.py`).
    """

    name: str  # in reports
    lossless: bool = False
    requires: Requires = Requires.TARGET_STEP
    passes: int = 0

    @abstractmethod
    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, in order, each independent of the other pairs."""

    def choose(self, drafts: Sequence[Step], verdicts: Sequence[Verdict]) -> int | None:
        """The index of the alternative to accept, which must be aligned; None: emit the
        target's step. Asked once all alternatives have verdicts, unless a verifier
        leaves it to this method: then the first aligned one is accepted at once. Must
        be a pure function.
        """
        # in the order of the siblings
        aligned = (j for j, verdict in enumerate(verdicts) if verdict.aligned)
        return next(aligned, None)

    @property
    def chooses(self) -> bool:
        """Whether it chooses among aligned alternatives by its own rule."""
        return type(self).choose is not Verifier.choose


class ExactVerifier(Verifier):
    """Accepts a step if its token ids, including end of sequence, equal the target's.
    With it Lookahead Reasoning at temperature 0 emits what greedy decoding of the
    target emits.
    """

    name = "exact"
    lossless = True

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            draft = pair.draft_step.tokens
            target = pair.target_step.tokens
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target  # eos is a token, and counts
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


def checked_verifier(verifier: object) -> Verifier:
    """`verifier`, with the attributes that decide when the target writes."""
    if not isinstance(verifier, Verifier):
        expected = "an object of a class derived from lr.spec.verifiers.base.Verifier"
        refuse("verifier", verifier, verifier, expected)
    check_names("verifier", verifier, Verifier)
    if not isinstance(verifier.requires, Requires):
        refuse("verifier", verifier, f"requires = {verifier.requires!r}", "Requires")
    own = Requires.OWN_LOGPROBS
    if verifier.requires & (own | Requires.TARGET_STEP) == own:
        expected = "TARGET_STEP beside OWN_LOGPROBS, which are about that step"
        refuse("verifier", verifier, verifier.requires, expected)
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


def unseen_difference(pair: Pair, decode: Decode) -> Verdict | None:
    """The rejection of a pair that differs in tokens without text, such as the end
    token of another model; None: the texts may decide. For verifiers that read text:
    the answer and the target's context would keep the token."""
    steps = pair.draft_step, pair.target_step
    if steps[0].tokens != steps[1].tokens:
        for step in steps:
            ends = step.finish is Finish.EOS  # by a token that is meant
            inner = step.tokens[: len(step.tokens) - ends]
            if not all(decode([token]) for token in inner):
                return Verdict(aligned=False, why="a special token inside a step")
    return None


def texts_of(pair: Pair, decode: Decode) -> list[str]:
    """The texts of the target's step and of the draft's."""
    return [decode(step.tokens).strip() for step in (pair.target_step, pair.draft_step)]


def unless_equal(
    pairs: Sequence[Pair],
    decode: Decode,
    judge: Callable[[Sequence[Pair]], list[Verdict]],
) -> list[Verdict]:
    """Accepts steps with equal texts, ignoring case and outer white space, rejects
    those that differ in what no text shows, and lets `judge` decide about the others.

    For verifiers that read text. White space inside a text counts: "x = 1 1" is not
    "x = 11", unlike in the official code, which deletes all white space."""
    verdicts = []  # None: the judge decides
    for pair in pairs:
        target, draft = texts_of(pair, decode)
        same = target.casefold() == draft.casefold()
        equal = Verdict(True, "equal text", 1.0) if same else None
        verdicts.append(unseen_difference(pair, decode) or equal)
    return completed(verdicts, pairs, judge)


def completed(
    verdicts: Sequence[Verdict | None],
    pairs: Sequence[Pair],
    judge: Callable[[Sequence[Pair]], list[Verdict]],
) -> list[Verdict]:
    """The verdicts on these pairs. Where there is none yet, `judge` decides, in one
    batch."""
    open_pairs = [pair for pair, v in zip(pairs, verdicts, strict=True) if not v]
    judged = iter(judge(open_pairs) if open_pairs else ())
    return [verdict or next(judged) for verdict in verdicts]


def verdicts_of(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict]:
    """The verifier's verdicts, checked."""
    if not pairs:
        return []
    verdicts: list[Verdict] = verifier.judge(tuple(pairs))
    lengths = [len(pair.draft_step.tokens) for pair in pairs]
    check_verdicts(verifier.judge, verdicts, lengths)
    return verdicts


def verify(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict]:
    """V(ŝ, s) of each pair of two steps: by how they end, if that is enough."""
    by_form = [verdict_by_form(pair.draft_step, pair.target_step) for pair in pairs]
    return completed(by_form, pairs, partial(verdicts_of, verifier))
