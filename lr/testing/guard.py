"""The parts of a variant, checked as they are used: what a part returns must be what its seam
expects, and an exception in it says in which seam it was raised. `Reasoner` runs every variant
through this; the parts of the package itself are not checked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from lr.errors import LRError, SettingError
from lr.kvcache.branch import Branch
from lr.options import GenerateOptions
from lr.spec.acceptance import AcceptanceRule, Decision, Draws, Outcome, Proposal
from lr.spec.drafters import Context, Drafter
from lr.spec.protocol import NodeId, Place, SchedulerConfig, Wait
from lr.spec.runner import Runner
from lr.spec.segmenters import Segmenter, TokenBytes
from lr.spec.variant import Correction, Corrector, StepStats, Variant
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier, check_verifier
from lr.types import Role, SamplingParams, Step, Verdict, require

METHODS = {
    "verifier": ("judge",),
    "router": ("who_writes",),
    "chooser": ("choose",),
    "proposer": ("propose",),
    "corrector": ("begin", "keep"),
}
"""What the objects of these seams must have."""
MAKERS = {
    "segmenter": "a class or function of one argument, token_bytes, that makes a Segmenter",
    "may_follow": "a function (node, step, logprobs) -> bool",
    "drafter": "a class or function (runner, sampling) that makes a Drafter",
}
"""What must be callable."""


STEPS = tuple("verifier router controller schedule chooser proposer corrector may_follow".split())
"""The parts of a variant that need a mode with draft steps."""


class VariantError(LRError, TypeError):
    """A part of a variant is not what its seam expects, or returned something else."""


@contextmanager
def seam(name: str, part: object) -> Iterator[None]:
    """What the part raises inside gets a note that names the seam (Python 3.11 and later)."""
    try:
        yield
    except Exception as error:
        if sys.version_info >= (3, 11) and not isinstance(error, VariantError):
            error.add_note(f"This was raised in the variant's {name}, {called(part)}.")
        raise


def called(part: object) -> str:
    """What to call a part in a message."""
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    return str(getattr(kind, "__qualname__", kind))


def refuse(name: str, part: object, method: str, got: object, expected: str) -> NoReturn:
    """Raise `VariantError`: a part returned something wrong."""
    raise VariantError(
        f"the variant's {name} is wrong: {called(part)}.{method} returned {got!r}; expected "
        f"{expected}. What the seam asks for: docs/variants.md."
    )


def guarded(variant: object) -> Variant:
    """The variant with its parts checked as they are used. Raises `VariantError` for a part that
    cannot be one.
    """
    if not isinstance(variant, Variant):
        made = "; make one of the class: Variant(...)" if inspect.isclass(variant) else ""
        raise VariantError(f"variant is {variant!r}, expected a lr.spec.variant.Variant{made}.")
    for name, methods in METHODS.items():
        part = getattr(variant, name)
        if part is not None and inspect.isclass(part) and name != "verifier":
            raise VariantError(
                f"the variant's {name} is the class {called(part)}, expected an object: make one, "
                f"{called(part)}(...)."
            )
        for method in methods if part is not None and name != "verifier" else ():
            if not callable(getattr(part, method, None)):
                raise VariantError(
                    f"the variant's {name} is {part!r}, which has no method {method}; expected an "
                    f"object with {' and '.join(methods)}."
                )
    for name, expected in MAKERS.items():
        part = getattr(variant, name)
        if part is not None and not callable(part):
            raise VariantError(f"the variant's {name} is {part!r}, expected {expected}.")
    _check_others(variant)
    parts: dict[str, Any] = {}
    wraps: dict[str, Callable[[Any], Any]] = {
        "verifier": guarded_verifier, "router": GuardedRouter, "chooser": GuardedChooser,
        "proposer": GuardedProposer, "corrector": GuardedCorrector, "rule": guarded_rule,
        "segmenter": GuardedSegmenters, "may_follow": guarded_follow,
        "controller": guarded_controller, "drafter": guarded_drafter,
    }  # fmt: skip
    for one in fields(Variant):
        part = getattr(variant, one.name)
        if one.name in wraps and part is not None:
            parts[one.name] = wraps[one.name](part)
    return replace(variant, **parts)


def _check_others(variant: Variant) -> None:
    schedule, control, rule = variant.schedule, variant.controller, variant.rule
    if schedule is not None and not (
        inspect.isclass(schedule) and issubclass(schedule, SchedulerConfig)
    ):
        raise VariantError(
            f"the variant's schedule is {schedule!r}, expected a subclass of "
            "lr.spec.protocol.SchedulerConfig (the class, not an object)."
        )
    if control is not None and not callable(control) and not _has(control, "depth"):
        raise VariantError(
            f"the variant's controller is {control!r}, which has no method depth(stats); expected "
            "a Controller, or a function of the question that makes one."
        )
    if rule is not None and not isinstance(rule, AcceptanceRule):
        raise VariantError(
            f"the variant's rule is {rule!r}, expected an object of a subclass of "
            "lr.spec.acceptance.AcceptanceRule."
        )


def _has(part: object, *methods: str) -> bool:
    return all(callable(getattr(part, method, None)) for method in methods)


# One class or function per seam


def guarded_verifier(verifier: Verifier) -> Verifier:
    """A verifier that is asked elsewhere is not checked here."""
    check_verifier(verifier)
    for name, kind in (("name", str), ("requires", Requires), ("fallible", bool)):
        value = getattr(verifier, name)
        if not isinstance(value, kind):
            raise VariantError(
                f"the variant's verifier {called(verifier)} has {name} = {value!r}, expected a "
                f"{kind.__name__}."
            )
    early = verifier.early_requires
    if early is not None and (not isinstance(early, Requires) or early & Requires.TARGET_STEP):
        raise VariantError(
            f"the variant's verifier {called(verifier)} has early_requires = {early!r}, expected "
            "None or Requires without TARGET_STEP, which is not there yet."
        )
    return verifier if isinstance(verifier, DeferredVerifier) else GuardedVerifier(verifier)


class GuardedVerifier(Verifier):
    """See `Verifier`."""

    def __init__(self, inner: Verifier) -> None:
        self.inner, self.name, self.fallible = inner, inner.name, inner.fallible
        self.requires, self.early_requires = inner.requires, inner.early_requires

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        with seam("verifier", self.inner):
            verdicts = self.inner.judge(pairs)
        return self._checked("judge", verdicts, len(pairs), unsure=False)

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        with seam("verifier", self.inner):
            verdicts = self.inner.judge_early(pairs)
        return self._checked("judge_early", verdicts, len(pairs), unsure=True)

    def _checked(self, method: str, verdicts: Any, count: int, *, unsure: bool) -> Any:
        expected = f"a list of {count} verdicts (lr.types.Verdict), one per pair, in order"
        if not isinstance(verdicts, list) or len(verdicts) != count:
            refuse("verifier", self.inner, method, verdicts, expected)
        for verdict in verdicts:
            if verdict is None and unsure:
                continue
            good = isinstance(verdict, Verdict) and isinstance(verdict.aligned, bool)
            if not good or not isinstance(verdict.why, str):
                what = f"{expected}; aligned is True or False, why a text"
                refuse("verifier", self.inner, method, verdict, what)
            score = verdict.score
            if score is not None and not isinstance(score, (int, float)):
                what = "a Verdict whose score is a float or None (a tensor: .item())"
                refuse("verifier", self.inner, method, verdict, what)
        return verdicts


@dataclass(frozen=True)
class GuardedRouter:
    """See `Router`."""

    inner: Any

    def who_writes(self, index: int, previous: Step | None) -> Role:
        with seam("router", self.inner):
            role = self.inner.who_writes(index, previous)
        if not isinstance(role, Role):
            refuse("router", self.inner, "who_writes", role, "Role.DRAFT or Role.TARGET (lr.types)")
        return role


@dataclass(frozen=True)
class GuardedChooser:
    """See `Chooser`. The scheduler checks what is chosen."""

    inner: Any

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        with seam("chooser", self.inner):
            choice: Any = self.inner.choose(place)
        count = len(place.drafts)
        whole = isinstance(choice, int) and not isinstance(choice, bool) and 0 <= choice < count
        aligned = whole and place.verdicts[choice].aligned
        waits = choice is Wait.WAIT and place.more > 0
        if not (choice is None or aligned or waits):
            expected = (
                f"the number, 0 to {count - 1}, of an aligned alternative, None (the target's "
                f"step), or WAIT while more are to come (now {place.more}); aligned are "
                f"{[v.aligned for v in place.verdicts]}"
            )
            refuse("chooser", self.inner, "choose", choice, expected)
        found: int | Literal[Wait.WAIT] | None = choice
        return found


def whole_numbers(found: object) -> bool:
    """Whether this is a sequence of token ids."""
    return (
        isinstance(found, Sequence)
        and not isinstance(found, (str, bytes))
        and all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found)
    )


@dataclass(frozen=True)
class GuardedProposer:
    """See `StepProposer`."""

    inner: Any

    def propose(self, tokens: Sequence[int], width: int) -> Sequence[Sequence[int] | None]:
        with seam("proposer", self.inner):
            made: Any = self.inner.propose(tokens, width)
        expected = f"at most {width} entries, each None or the token ids of a step"
        listed = isinstance(made, Sequence) and not isinstance(made, (str, bytes))
        if not listed or len(made) > width:
            refuse("proposer", self.inner, "propose", made, expected)
        if not all(one is None or whole_numbers(one) for one in made):
            refuse("proposer", self.inner, "propose", made, expected)
        found: Sequence[Sequence[int] | None] = made
        return found


@dataclass(frozen=True)
class GuardedCorrector(Corrector):
    """See `Corrector`."""

    inner: Any

    def begin(self, correction: Correction) -> Sequence[int]:
        with seam("corrector", self.inner):
            begun: Any = self.inner.begin(correction)
        if not whole_numbers(begun):
            expected = "token ids: the beginning of a rejected draft step, or () for none"
            refuse("corrector", self.inner, "begin", begun, expected)
        return tuple(begun)

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        with seam("corrector", self.inner):
            kept = self.inner.keep(correction, step, number)
        if not isinstance(kept, bool):
            refuse("corrector", self.inner, "keep", kept, "True or False")
        return kept


@dataclass(frozen=True)
class GuardedSegmenters:
    """Makes checked segmenters; it can be sent to the draft's process."""

    inner: Any

    def __call__(self, token_bytes: TokenBytes) -> Segmenter:
        with seam("segmenter", self.inner):
            made = self.inner(token_bytes)
        if not _has(made, "feed"):
            refuse("segmenter", self.inner, "__call__", made, "an object with feed(token) -> bool")
        return GuardedSegmenter(made)


@dataclass(frozen=True)
class GuardedSegmenter:
    """See `Segmenter`."""

    inner: Any

    def feed(self, token: int) -> bool:
        with seam("segmenter", self.inner):
            ends = self.inner.feed(token)
        if not isinstance(ends, bool):
            expected = "True if the step is complete with this token, else False"
            refuse("segmenter", self.inner, "feed", ends, expected)
        return ends


def guarded_follow(inner: Any) -> Callable[[NodeId, Step, Sequence[float]], bool]:
    """See `MayFollow`."""

    def may_follow(node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        with seam("may_follow", inner):
            follows = inner(node, step, logprobs)
        if not isinstance(follows, bool):
            refuse("may_follow", inner, "__call__", follows, "True or False")
        return follows

    return may_follow


def guarded_controller(inner: Any) -> Any:
    """See `Controller`."""
    if not callable(inner):
        return GuardedController(inner)
    known = inspect.signature(inner).parameters.values()
    asks = any(one.name == "question" or one.default is one.empty for one in known)

    def make(question: str) -> GuardedController:
        with seam("controller", inner):
            made = inner(question) if asks else inner()
        if not _has(made, "depth"):
            refuse("controller", inner, "__call__", made, "an object with depth(stats)")
        return GuardedController(made)

    return make


@dataclass(frozen=True)
class GuardedController:
    """See `Controller`."""

    inner: Any

    @property
    def entropies(self) -> bool:
        wanted = getattr(self.inner, "entropies", False)
        if not isinstance(wanted, bool):
            raise VariantError(
                f"the variant's controller {called(self.inner)} has entropies = {wanted!r}, "
                "expected True or False."
            )
        return wanted

    def depth(self, stats: StepStats) -> int:
        with seam("controller", self.inner):
            depth = self.inner.depth(stats)
        if not isinstance(depth, int) or isinstance(depth, bool):
            refuse("controller", self.inner, "depth", depth, "a whole number (an int) of steps")
        return depth

    def tokens(self, stats: StepStats) -> int | None:
        if not _has(self.inner, "tokens"):
            return None
        with seam("controller", self.inner):
            k = self.inner.tokens(stats)
        if k is not None and (type(k) is not int or k < 0):
            refuse("controller", self.inner, "tokens", k, "a whole number (an int) >= 0, or None")
        found: int | None = k
        return found

    def width(self, stats: StepStats) -> int | None:
        if not _has(self.inner, "width"):
            return None
        with seam("controller", self.inner):
            width = self.inner.width(stats)
        if width is not None and (type(width) is not int or width < 1):
            expected = "a whole number (an int) >= 1 of alternatives, or None"
            refuse("controller", self.inner, "width", width, expected)
        found: int | None = width
        return found


def guarded_drafter(inner: Any) -> Callable[[Runner | None, SamplingParams], Drafter]:
    """See `Drafter`."""

    def make(runner: Runner | None, sampling: SamplingParams) -> Drafter:
        with seam("drafter", inner):
            made = inner(runner, sampling)
        members = ("name", "trees", "coupling", "propose", "forget")
        missing = [name for name in members if not hasattr(made, name)]
        if missing:
            expected = "an object of a subclass of lr.spec.drafters.Drafter"
            refuse("drafter", inner, "__call__", made, f"{expected}; {missing} are missing")
        return GuardedDrafter(made)

    return make


class GuardedDrafter(Drafter):
    """See `Drafter`."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.name = inner, inner.name
        self.trees, self.coupling = inner.trees, inner.coupling

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        lengths = [len(context.tokens) for context in contexts]
        with seam("drafter", self.inner):
            made: Any = self.inner.propose(contexts, k)
        expected = f"a list of {len(contexts)} Proposals, one per context"
        if not isinstance(made, list) or len(made) != len(contexts):
            refuse("drafter", self.inner, "propose", made, expected)
        for context, proposal, length in zip(contexts, made, lengths, strict=True):
            if not isinstance(proposal, Proposal):
                refuse("drafter", self.inner, "propose", proposal, expected)
            if len(context.tokens) != length:
                refuse("drafter", self.inner, "propose", "a changed context", "no change to it")
            deepest, most = max(proposal.depths()), max(0, min(k, context.limit))
            if deepest > most:
                what = f"proposals at most min(k, limit) = {most} deep; this one is {deepest} deep"
                refuse("drafter", self.inner, "propose", proposal.tokens, what)
            if not self.trees and not proposal.is_chain:
                refuse("drafter", self.inner, "propose", proposal.parents, "chains: trees is False")
            if proposal.q is not None and not _distributions(proposal.q):
                what = "a q whose rows are distributions: not negative, each with sum 1"
                refuse("drafter", self.inner, "propose", proposal.q.sum(-1), what)
        found: list[Proposal] = made
        return found

    def forget(self, branches: Iterable[Branch]) -> None:
        with seam("drafter", self.inner):
            self.inner.forget(branches)


def _distributions(rows: Tensor) -> bool:
    close = torch.allclose(rows.sum(-1).double(), torch.ones(rows.shape[:-1]).double(), atol=1e-4)
    return bool((rows >= 0).all()) and close


def guarded_rule(rule: AcceptanceRule) -> AcceptanceRule:
    """See `AcceptanceRule`."""
    for name, kind in (("name", str), ("lossless", bool), ("trees", bool)):
        if not isinstance(getattr(rule, name, None), kind):
            raise VariantError(
                f"the variant's rule {called(rule)} has no {name}; expected a {kind.__name__} in "
                "its class (see lr.spec.acceptance.AcceptanceRule)."
            )
    return GuardedRule(rule)


class GuardedRule(AcceptanceRule):
    """See `AcceptanceRule`. What overrides `verify` is checked for the type of its decisions."""

    def __init__(self, inner: AcceptanceRule) -> None:
        self.inner, self.name, self.lossless = inner, inner.name, inner.lossless
        self.trees, self.needs_fresh_noise = inner.trees, inner.needs_fresh_noise
        self.draws_uniform = inner.draws_uniform

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        with seam("rule", self.inner):
            made: Any = self.inner.outcomes(p_rows, proposal)
        listed = isinstance(made, list) and made and all(isinstance(one, Outcome) for one in made)
        if not listed:
            refuse("rule", self.inner, "outcomes", made, "a list of Outcomes, at least one")
        total = sum(one.probability for one in made)
        fits = abs(total - 1) < 1e-4 and all(one.probability > -1e-9 for one in made)
        if not fits:
            odds = [one.probability for one in made]
            refuse("rule", self.inner, "outcomes", odds, "probabilities >= 0 that sum to 1")
        for one in made:
            steps = zip((-1, *one.nodes), one.nodes, strict=False)
            inside = all(0 <= node < len(proposal) for node in one.nodes)
            if not inside or any(proposal.parents[node] != above for above, node in steps):
                expected = f"nodes that are a path from the root (parents {proposal.parents})"
                refuse("rule", self.inner, "outcomes", one.nodes, expected)
            following = one.next_probs() if one.probability > 0 else p_rows[0]
            if following.shape != p_rows[0].shape or not _distributions(following[None]):
                expected = f"next_probs() of shape [{p_rows.shape[1]}], not negative, with sum 1"
                refuse("rule", self.inner, "outcomes", following, expected)
        found: list[Outcome] = made
        return found

    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        if type(self.inner).verify is AcceptanceRule.verify:
            return super().verify(probs, proposals, draws)
        with seam("rule", self.inner):
            made: Any = self.inner.verify(probs, proposals, draws)
        good = isinstance(made, list) and len(made) == len(proposals)
        if not good or not all(isinstance(one, Decision) for one in made):
            expected = f"a list of {len(proposals)} Decisions, one per proposal"
            refuse("rule", self.inner, "verify", made, expected)
        found: list[Decision] = made
        return found


def with_settings(options: GenerateOptions, variant: Variant) -> GenerateOptions:
    """The options with the variant's settings, where the caller has left the default. Raises
    `SettingError` for parts of the variant that would do nothing in this mode.
    """
    known, usual = {one.name for one in fields(options)}, GenerateOptions()
    for name in variant.settings:
        require(name in known, "a name in Variant.settings", name, "an option of generate")
    options = replace(
        options,
        **{n: v for n, v in variant.settings.items() if getattr(options, n) == getattr(usual, n)},
    )
    steps = [name for name in STEPS if getattr(variant, name) is not None]
    tokens = [name for name in ("drafter", "rule") if getattr(variant, name) is not None]
    idle = [] if options.looks_ahead else steps
    idle += [] if options.speculates else tokens
    if idle:
        raise SettingError(
            f"mode {options.mode!r} makes no use of the variant's {' and '.join(idle)}; use mode "
            f"{'lr or lr+sd' if steps else 'sd or lr+sd'}."
        )
    return options
