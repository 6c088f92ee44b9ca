"""What a verifier is: it decides whether a draft step means the same as the target's step.

A verifier judges pairs (prefix, draft step, target step) in batches; each verdict depends on its
own pair alone. It states what it `requires` of a pair, so the scheduler knows whether the target
must write a step first. It never decides eligibility (cut steps, ends of text): the scheduler does.

A verifier of your own subclasses `Verifier` and has a `name` and `judge`, as `ExactVerifier` below.
Read next: `lr/parts/judge.py`, `lr/parts/verifiers.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Protocol

from lr.errors import ProtocolError, SettingError
from lr.kvcache.branch import common_length
from lr.spec.protocol import Note, silent
from lr.types import Finish, Step, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from lr.rng import Stream


class Requires(Flag):
    """What a pair must hold besides its prefix and its draft step. Values add up with `|`."""

    NOTHING = 0
    TARGET_STEP = auto()
    """The target's own step from the same prefix."""
    TARGET_LOGPROBS = auto()
    """The target's log-probabilities of the draft step's tokens, from the prefill of that step."""
    HIDDEN = auto()
    """The target's last hidden states at the draft step's tokens."""
    SAMPLING_LOGPROBS = auto()
    """The log-probabilities of the draft step's tokens under the distributions from which target
    and draft sample (temperature and filters applied), not under the raw logits."""


@dataclass(frozen=True)
class Pair:
    """Two versions of one step. `prefix` holds the token ids before it, prompt included.

    `logprobs[i]` is the natural log-probability under the target's raw logits of the draft's token
    i given all tokens before it; `hidden` [t, e] holds the target's last hidden states at these
    tokens. `target_sampling` and `draft_sampling` are the log-probabilities log p and log q under
    the sampling distributions; `draft_sampling` is empty for a step that no model drew. All are
    there if the verifier requires them. `stream` is the randomness of this pair, for decisions by
    chance: `uniform(pair.stream.key(0))`; None where no models run. `note` tells the trace.
    `index`: which step of the answer this is, counted from 0; 0 where no engine runs.
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

    @property
    def target_step(self) -> Step:
        """The target's step. Raises `ProtocolError` if the pair has none."""
        if self.target is None:
            raise ProtocolError(
                "this pair has no target step, and the verifier compares with one: its `requires` "
                "must include Requires.TARGET_STEP."
            )
        return self.target


class Verifier(Protocol):
    """Judges pairs. Subclass it to inherit the defaults below."""

    name: str
    """What reports call it."""
    requires: Requires = Requires.TARGET_STEP
    """What the pairs given to `judge` must hold."""
    early_requires: Requires | None = None
    """What `judge_early` needs, which never includes the target step; None: no early pass."""
    fallible: bool = False
    """Whether an exception in `judge` is a rejection, as for a served judge; else it is raised."""
    passes: int = 0
    """How many forwards it has made of models of its own, or requests to a server."""

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict per pair, in order, each independent of the other pairs."""
        ...

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        """A cheap first pass, before the target's step is written: None where it is not sure."""
        return [None] * len(pairs)


class ExactVerifier(Verifier):
    """Accepts if the token ids are equal, the end-of-sequence token included. With it Lookahead
    Reasoning at temperature 0 emits what greedy decoding of the target emits.
    """

    name = "exact"

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for draft, target in ((pair.draft.tokens, pair.target_step.tokens) for pair in pairs):
            differ = f"tokens differ from offset {common_length(draft, target)} on"
            same = draft == target
            verdicts.append(Verdict(same, why="equal tokens" if same else differ))
        return verdicts


class DeferredVerifier(ABC):
    """A verifier that is asked elsewhere and not waited for. `here`: in this process, so that with
    driver lockstep it is waited for.
    """

    passes: int = 0
    here: bool = False

    @abstractmethod
    def ask(self, pair: Pair) -> Future[Verdict]:
        """Begin to judge a pair. Cancel what is no longer wanted."""


def check_verifier(verifier: object) -> Verifier:
    """`verifier` if it has the members of `Verifier`; else `SettingError` names what is missing."""
    if isinstance(verifier, (str, type)):
        raise SettingError(
            f"the verifier is {verifier!r}, expected an object with `name` and `judge`: make one "
            "of the class; a verifier's name goes to Reasoner(verifier=...)."
        )
    if getattr(type(verifier), "judge", None) is Verifier.judge:
        raise SettingError(f"the verifier {verifier!r} has no method judge(pairs).")
    members = (*Verifier.__annotations__, "judge", "judge_early")
    missing = [member for member in members if not hasattr(verifier, member)]
    if missing:
        raise SettingError(
            f"the verifier {verifier!r} has no {', '.join(missing)}. Derive its class from "
            "lr.spec.verifiers.base.Verifier, which has defaults, and give it `name` and `judge`."
        )
    return verifier  # type: ignore[return-value]


def verdict_by_form(draft: Step, target: Step) -> Verdict | None:
    """The verdict that follows from how two steps end; None: the verifier has to decide.

    A cut step (`Finish.LENGTH`) is half a sentence: as a draft it is never accepted, as a target
    step it proves nothing. A step that ends the text and one that does not are never the same.
    """
    if draft.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the draft step was cut")
    if target.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the target step was cut")
    if (draft.finish is Finish.EOS) != (target.finish is Finish.EOS):
        ending = "draft" if draft.finish is Finish.EOS else "target"
        return Verdict(aligned=False, why=f"only the {ending} step ends the text")
    return None


def verdicts_of(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict]:
    """The verifier's verdicts. After an exception of a `fallible` verifier it is asked about each
    pair alone, so that a pair that fails is rejected and no other.

    Raises what any other verifier raises, and `TypeError` if it returns something else.
    """
    return [verdict for verdict in _asked(verifier, pairs) if verdict is not None]


def all_verdicts_of(verifier: Verifier, pairs: Sequence[Pair]) -> list[Verdict | None]:
    """As `verdicts_of`, of pairs some of which have no target step: None where it is needed."""
    early = bool(verifier.requires & Requires.TARGET_STEP)
    alone = iter(_asked(verifier, [pair for pair in pairs if pair.target is None], early=early))
    whole = iter(_asked(verifier, [pair for pair in pairs if pair.target is not None]))
    return [next(alone if pair.target is None else whole) for pair in pairs]


def _asked(
    verifier: Verifier, pairs: Sequence[Pair], *, early: bool = False
) -> list[Verdict | None]:
    if not pairs:
        return []
    found: Sequence[Verdict | None]
    try:
        found = verifier.judge_early(pairs) if early else verifier.judge(pairs)
    except Exception as error:
        if not verifier.fallible:
            raise
        if len(pairs) > 1:
            return [one for pair in pairs for one in _asked(verifier, [pair], early=early)]
        why = f"verifier {verifier.name} failed: {type(error).__name__}: {error}"
        return [None if early else Verdict(aligned=False, why=why, failed=True)]
    good = isinstance(found, list) and len(found) == len(pairs)
    if not good or not all(isinstance(one, Verdict) or (early and one is None) for one in found):
        raise TypeError(
            f"verifier {verifier.name!r} returned {found!r}; expected a list of {len(pairs)} "
            "verdicts, one lr.types.Verdict per pair."
        )
    return list(found)
