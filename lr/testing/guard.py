"""The parts of a variant, checked as they are used: what a part returns must be what its extension
point expects, and an exception in it says in which extension point it was raised. `Reasoner` runs
every variant through `guarded`; the parts of the package itself are not checked. Read next:
`ask.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from lr.errors import SettingError
from lr.options import GenerateOptions
from lr.spec.acceptance import AcceptanceRule
from lr.spec.protocol import NodeId, Place, SchedulerConfig, Wait, silent
from lr.spec.variant import Correction, Corrector, StepStats, Variant
from lr.spec.verifiers.base import DeferredVerifier, Pair, Requires, Verifier, check_verifier
from lr.spec.write import Segmenter, TokenBytes
from lr.testing.ask import (
    Guarded,
    Notes,
    VariantError,
    ask,
    called,
    has,
    is_bool,
    is_whole,
    no_notes,
    refuse,
)
from lr.testing.guard_tokens import guarded_drafter, guarded_rule
from lr.types import Role, Step, Verdict, require

STEPS = tuple("verifier router controller schedule chooser proposer corrector may_follow".split())
"""The parts of a variant that need a mode with draft steps."""
METHODS = {
    "router": ("who_writes",),
    "chooser": ("choose",),
    "proposer": ("propose",),
    "corrector": ("begin", "keep"),
}
"""What the objects of these extension points must have."""


def is_schedule(part: object) -> bool:
    """Whether this is a class of schedules."""
    return inspect.isclass(part) and issubclass(part, SchedulerConfig)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "segmenter": (
        callable,
        "a class or function of one argument, token_bytes, that makes a Segmenter",
    ),
    "may_follow": (callable, "a function (node, step, logprobs) -> bool"),
    "drafter": (callable, "a class or function (runner, sampling) that makes a Drafter"),
    "schedule": (
        is_schedule,
        "a subclass of lr.spec.protocol.SchedulerConfig (the class, not an object)",
    ),
    "controller": (
        lambda part: callable(part) or has(part, "depth"),
        "a Controller, an object with the method depth(stats), or a function of the question that "
        "makes one",
    ),
    "rule": (
        lambda part: isinstance(part, AcceptanceRule),
        "an object of a subclass of lr.spec.acceptance.AcceptanceRule",
    ),
}
"""What the parts of the other extension points must be. A verifier is looked at by
`guarded_verifier`."""


def guarded(variant: object, notes: Notes = no_notes) -> Variant:
    """The variant with its parts checked as they are used; `notes` is for what they tell the trace.
    Raises `VariantError` for a part that cannot be one.
    """
    if not isinstance(variant, Variant):
        made = "; make one of the class: Variant(...)" if inspect.isclass(variant) else ""
        raise VariantError(f"variant is {variant!r}, expected a lr.spec.variant.Variant{made}.")
    parts = {name: getattr(variant, name) for name in GUARDS}
    parts = {name: part for name, part in parts.items() if part is not None}
    for name, part in parts.items():
        _check_part(name, part)
    return replace(variant, **{name: GUARDS[name](part, notes) for name, part in parts.items()})


def _check_part(name: str, part: object) -> None:
    is_one, expected = KINDS.get(name, (lambda part: True, ""))
    if not is_one(part):
        raise VariantError(f"the variant's {name} is {part!r}, expected {expected}.")
    for method in METHODS.get(name, ()):
        if inspect.isclass(part):
            raise VariantError(
                f"the variant's {name} is the class {called(part)}, expected an object: make one, "
                f"{called(part)}(...)."
            )
        if not has(part, method):
            raise VariantError(
                f"the variant's {name} is {part!r}, which has no method {method}; expected an "
                f"object with {' and '.join(METHODS[name])}."
            )


# One class or function per extension point


def guarded_verifier(verifier: Verifier, notes: Notes = no_notes) -> Verifier:
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


class GuardedVerifier(Guarded, Verifier):
    """See `Verifier`."""

    point = "verifier"

    def __post_init__(self) -> None:
        inner = self.inner
        self.name, self.fallible = inner.name, inner.fallible
        self.requires, self.early_requires = inner.requires, inner.early_requires

    @property
    def passes(self) -> int:  # type: ignore[override]  # it only counts up
        return int(self.inner.passes)

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return self._verdicts("judge", pairs, unsure=False)

    def judge_early(self, pairs: Sequence[Pair]) -> list[Verdict | None]:
        return self._verdicts("judge_early", pairs, unsure=True)

    def _verdicts(self, method: str, pairs: Sequence[Pair], *, unsure: bool) -> Any:
        count = len(pairs)
        expected = (
            f"a list of {count} verdicts (lr.types.Verdict), one per pair, in order; aligned "
            "is True or False, why a text, score is a float or None (of a tensor: .item())"
        )

        def listed(them: object) -> bool:
            return isinstance(them, list) and len(them) == count

        try:
            verdicts = self.ask(method, list(pairs), fits=listed, expected=expected)
        except (TypeError, AttributeError) as error:  # perhaps None was taken for a value
            with suppress(Exception):  # there are exceptions that take no notes
                if not isinstance(error, VariantError):
                    error.add_note(
                        f"Its pairs hold what its `requires` asks for ({self.requires}) and None "
                        "elsewhere: docs/variants.md, What each extension point may rely on."
                    )
            raise
        for verdict in verdicts:
            if not (is_verdict(verdict) or (verdict is None and unsure)):
                refuse(self.point, self.inner, method, verdict, expected)
        return verdicts


def is_verdict(found: object) -> bool:
    """Whether this is a verdict of plain values."""
    if not isinstance(found, Verdict):
        return False
    number = isinstance(found.score, (int, float, type(None)))
    return is_bool(found.aligned) and isinstance(found.why, str) and number


@dataclass(eq=False)
class GuardedRouter(Guarded):
    """See `Router`. What it decides is noted the first time that it is asked about a step."""

    point, methods = "router", ("who_writes",)
    known: set[tuple[int, Step | None]] = field(default_factory=set, init=False, repr=False)

    def who_writes(self, index: int, previous: Step | None) -> Role:
        new = (index, previous) not in self.known
        self.known.add((index, previous))
        note = self.notes(None) if new else silent
        expected = "Role.DRAFT or Role.TARGET (lr.types)"
        role: Role = self.ask(
            "who_writes", index, previous, fits=is_role, expected=expected, note=note
        )
        note("router", step=index, writes=role.value)
        return role


def is_role(found: object) -> bool:
    """One of the two models."""
    return isinstance(found, Role)


class GuardedChooser(Guarded):
    """See `Chooser`. The scheduler checks what is chosen."""

    point = "chooser"

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        count = len(place.drafts)

        def fits(choice: Any) -> bool:
            if is_whole(choice):
                return 0 <= choice < count and place.verdicts[choice].aligned
            return choice is None or (choice is Wait.WAIT and place.more > 0)

        expected = (
            f"the number, 0 to {count - 1}, of an aligned alternative, None (the target's step), "
            f"or WAIT while more are to come (now {place.more}); aligned are "
            f"{[v.aligned for v in place.verdicts]}"
        )
        choice: int | Literal[Wait.WAIT] | None = self.ask(
            "choose", place, fits=fits, expected=expected
        )
        return choice


def are_tokens(found: Any) -> bool:
    """Whether this is a sequence of token ids."""
    return is_listed(found) and all(is_whole(one) and one >= 0 for one in found)


def is_listed(found: object) -> bool:
    """Whether this is a list or a tuple, and no text."""
    return isinstance(found, Sequence) and not isinstance(found, (str, bytes))


class GuardedProposer(Guarded):
    """See `StepProposer`."""

    point, methods = "proposer", ("propose",)

    def propose(self, tokens: Sequence[int], width: int) -> Sequence[Sequence[int] | None]:
        def fits(made: Any) -> bool:
            few = is_listed(made) and len(made) <= width
            return few and all(one is None or are_tokens(one) for one in made)

        expected = f"at most {width} entries, each None or the token ids of a step"
        made: Sequence[Sequence[int] | None] = self.ask(
            "propose", tokens, width, fits=fits, expected=expected, note=self.notes(None)
        )
        return made


class GuardedCorrector(Guarded, Corrector):
    """See `Corrector`."""

    point = "corrector"

    def begin(self, correction: Correction) -> Sequence[int]:
        expected = "token ids: the beginning of a rejected draft step, or () for none"
        return tuple(self.ask("begin", correction, fits=are_tokens, expected=expected))

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        expected = "True or False"
        return bool(self.ask("keep", correction, step, number, fits=is_bool, expected=expected))


class GuardedSegmenters(Guarded):
    """Makes checked segmenters; it can be sent to the draft's process."""

    point = "segmenter"

    def __call__(self, token_bytes: TokenBytes) -> Segmenter:
        def feeds(made: object) -> bool:
            return has(made, "feed")

        expected = "an object with feed(token) -> bool"
        return GuardedSegmenter(self.ask("__call__", token_bytes, fits=feeds, expected=expected))


class GuardedSegmenter(Guarded):
    """See `Segmenter`."""

    point = "segmenter"

    def feed(self, token: int) -> bool:
        expected = "True if the step is complete with this token, else False"
        return bool(self.ask("feed", token, fits=is_bool, expected=expected))


class GuardedFollow(Guarded):
    """See `MayFollow`."""

    point, methods = "may_follow", ("__call__",)

    def __call__(self, node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        how: dict[str, Any] = {"expected": "True or False", "note": self.notes(node)}
        return bool(self.ask("__call__", node, step, logprobs, fits=is_bool, **how))


def guarded_controller(inner: Any, notes: Notes = no_notes) -> Any:
    """See `Controller`."""
    if not callable(inner):
        return GuardedController(inner, notes)
    known = inspect.signature(inner).parameters.values()
    asks = any(one.name == "question" or one.default is one.empty for one in known)

    def make(question: str) -> GuardedController:
        def fits(made: object) -> bool:
            return has(made, "depth")

        given, expected = ((question,) if asks else ()), "an object with depth(stats)"
        made = ask("controller", inner, "__call__", *given, fits=fits, expected=expected)
        return GuardedController(made, notes)

    return make


class GuardedController(Guarded):
    """See `Controller`."""

    point, methods = "controller", ("depth", "tokens", "width")

    @property
    def entropies(self) -> bool:
        wanted = getattr(self.inner, "entropies", False)
        if not is_bool(wanted):
            raise VariantError(
                f"the variant's controller {called(self.inner)} has entropies = {wanted!r}, "
                "expected True or False."
            )
        return bool(wanted)

    def depth(self, stats: StepStats) -> int:
        how: dict[str, Any] = {"fits": is_whole, "note": self.notes(None)}
        return int(self.ask("depth", stats, expected="a whole number (an int) of steps", **how))

    def tokens(self, stats: StepStats) -> int | None:
        return self._if_any("tokens", stats, least=0)

    def width(self, stats: StepStats) -> int | None:
        return self._if_any("width", stats, least=1)

    def _if_any(self, method: str, stats: StepStats, *, least: int) -> int | None:
        """A number from a method that need not be there."""
        if not has(self.inner, method):
            return None

        def fits(number: Any) -> bool:
            return number is None or (is_whole(number) and number >= least)

        expected, note = f"a whole number (an int) >= {least}, or None", self.notes(None)
        found: int | None = self.ask(method, stats, fits=fits, expected=expected, note=note)
        return found


GUARDS: dict[str, Callable[[Any, Notes], Any]] = {
    "verifier": guarded_verifier,
    "router": GuardedRouter,
    "controller": guarded_controller,
    "schedule": lambda part, notes: part,
    "chooser": GuardedChooser,
    "proposer": GuardedProposer,
    "corrector": GuardedCorrector,
    "may_follow": GuardedFollow,
    "segmenter": lambda part, notes: GuardedSegmenters(part),
    "drafter": guarded_drafter,
    "rule": guarded_rule,
}


def require_settings(variant: Variant) -> None:
    """Raise `SettingError` for a name or a value in `Variant.settings` that is no option's."""
    known = {one.name for one in fields(GenerateOptions)}
    for name in variant.settings:
        near = get_close_matches(name, known, 1)
        meant = f"an option of generate{f', such as {near[0]!r}' if near else ''}"
        require(name in known, "a name in Variant.settings", name, meant)
    replace(GenerateOptions(), **variant.settings)


def with_settings(options: GenerateOptions, variant: Variant) -> GenerateOptions:
    """The options with the variant's settings, where they are still the default. Raises
    `SettingError` for parts of the variant that would do nothing in this mode.
    """
    usual = GenerateOptions()
    require_settings(variant)
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
