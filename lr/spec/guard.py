"""The parts of a variant, checked as they are used.

A result must be what the extension point expects, and an exception gets a note that
names the extension point. `Reasoner` applies `guarded` to every variant; the package's
own parts are not checked. Read next: `ask.py`."""

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
from lr.spec.ask import (
    Guarded,
    Notes,
    VariantError,
    ask,
    called,
    has,
    is_bool,
    is_whole,
    list_of,
    no_notes,
)
from lr.spec.guard_tokens import guarded_drafter, guarded_rule
from lr.spec.protocol import NodeId, Place, SchedulerConfig, Wait, silent
from lr.spec.variant import Correction, Corrector, StepStats, Variant
from lr.spec.verifiers.base import (
    DeferredVerifier,
    Pair,
    Requires,
    Verifier,
    check_verifier,
)
from lr.spec.write import Segmenter, TokenBytes
from lr.types import Role, Step, Verdict, require

STEPS = tuple(
    "verifier router controller schedule chooser proposer corrector may_follow".split()
)
"""The parts of a variant that need a mode with draft steps."""
METHODS = {
    "router": ("who_writes",),
    "chooser": ("choose",),
    "proposer": ("propose",),
    "corrector": ("begin", "keep"),
}
"""The methods that the objects of these extension points must have."""
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "segmenter": (
        callable,
        "a class or function of one argument, token_bytes, that makes a Segmenter",
    ),
    "may_follow": (callable, "a function (node, step, logprobs) -> bool"),
    "drafter": (
        callable,
        "a class or function (runner, sampling) that makes a Drafter",
    ),
    "schedule": (
        lambda part: inspect.isclass(part) and issubclass(part, SchedulerConfig),
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
"""What the parts of other extension points must be; `guarded_verifier` checks
verifiers."""


def guarded(variant: object, notes: Notes = no_notes) -> Variant:
    """The variant with guarded parts; `notes` is where they add notes to the trace.

    Raises `VariantError` for a part that does not fit its extension point."""
    if not isinstance(variant, Variant):
        made = (
            "; make one of the class: Variant(...)" if inspect.isclass(variant) else ""
        )
        raise VariantError(
            f"variant is {variant!r}, expected a lr.spec.variant.Variant{made}."
        )
    parts = {name: getattr(variant, name) for name in GUARDS}
    parts = {name: part for name, part in parts.items() if part is not None}
    for name, part in parts.items():
        _check_part(name, part)
    return replace(
        variant, **{name: GUARDS[name](part, notes) for name, part in parts.items()}
    )


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
    """See `Verifier`. The verdicts of a `DeferredVerifier` are not checked."""
    check_verifier(verifier)
    for name, kind in (("name", str), ("requires", Requires), ("fallible", bool)):
        value = getattr(verifier, name)
        if not isinstance(value, kind):
            raise VariantError(
                f"the variant's verifier {called(verifier)} has {name} = {value!r}, expected a "
                f"{kind.__name__}."
            )
    early = verifier.early_requires
    if early is not None and (
        not isinstance(early, Requires) or early & Requires.TARGET_STEP
    ):
        raise VariantError(
            f"the variant's verifier {called(verifier)} has early_requires = {early!r}, expected "
            "None or Requires without TARGET_STEP, which is not available early."
        )
    return (
        verifier
        if isinstance(verifier, DeferredVerifier)
        else GuardedVerifier(verifier)
    )


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
        listed = list_of(object, count)
        try:
            verdicts = self.ask(method, list(pairs), fits=listed, expected=expected)
        except (
            TypeError,
            AttributeError,
        ) as error:  # perhaps it took a None for a value
            with suppress(Exception):  # some exceptions take no notes
                if not isinstance(error, VariantError):
                    error.add_note(
                        f"Its pairs hold what its `requires` asks for ({self.requires}) and None "
                        "elsewhere: docs/variants.md, What each extension point may rely on."
                    )
            raise
        for verdict in verdicts:
            if not (is_verdict(verdict) or (verdict is None and unsure)):
                self.refuse(method, verdict, expected)
        return verdicts


def is_verdict(found: object) -> bool:
    """Whether this is a `Verdict` of plain Python values."""
    if not isinstance(found, Verdict):
        return False
    number = isinstance(found.score, (int, float, type(None)))
    return is_bool(found.aligned) and isinstance(found.why, str) and number


@dataclass(eq=False)
class GuardedRouter(Guarded):
    """See `Router`. Its decision is noted the first time that it is asked about a
    step."""

    point, methods = "router", ("who_writes",)
    known: set[tuple[int, Step | None]] = field(
        default_factory=set, init=False, repr=False
    )

    def who_writes(self, index: int, previous: Step | None) -> Role:
        new = (index, previous) not in self.known
        self.known.add((index, previous))
        note = self.notes(None) if new else silent

        def fits(role: object) -> bool:
            return isinstance(role, Role)

        expected, given = "Role.DRAFT or Role.TARGET (lr.types)", (index, previous)
        role: Role = self.ask(
            "who_writes", *given, fits=fits, expected=expected, note=note
        )
        note("router", step=index, writes=role.value)
        return role


class GuardedChooser(Guarded):
    """See `Chooser`."""

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
        return self.ask("choose", place, fits=fits, expected=expected)


def is_sequence(found: object) -> bool:
    """Whether this is a sequence, such as a list or a tuple, but not text."""
    return isinstance(found, Sequence) and not isinstance(found, (str, bytes))


def are_tokens(found: Any) -> bool:
    """Whether this is a sequence of token ids."""
    return is_sequence(found) and all(is_whole(one) and one >= 0 for one in found)


class GuardedProposer(Guarded):
    """See `StepProposer`."""

    point, methods = "proposer", ("propose",)

    def propose(
        self, tokens: Sequence[int], width: int
    ) -> Sequence[Sequence[int] | None]:
        def fits(made: Any) -> bool:
            few = is_sequence(made) and len(made) <= width
            return few and all(one is None or are_tokens(one) for one in made)

        expected = f"at most {width} entries, each None or the token ids of a step"
        note = self.notes(None)
        return self.ask(
            "propose", tokens, width, fits=fits, expected=expected, note=note
        )


class GuardedCorrector(Guarded, Corrector):
    """See `Corrector`."""

    point = "corrector"

    def begin(self, correction: Correction) -> Sequence[int]:
        expected = "token ids: the beginning of a rejected draft step, or () for none"
        return tuple(self.ask("begin", correction, fits=are_tokens, expected=expected))

    def keep(self, correction: Correction, step: Step, number: float) -> bool:
        expected = "True or False"
        return self.ask(
            "keep", correction, step, number, fits=is_bool, expected=expected
        )


class GuardedSegmenters(Guarded):
    """Makes guarded segmenters. It can be sent to the draft's process."""

    point = "segmenter"

    def __call__(self, token_bytes: TokenBytes) -> Segmenter:
        def fits(made: object) -> bool:
            return has(made, "feed")

        expected = "an object with feed(token) -> bool"
        return GuardedSegmenter(
            self.ask("__call__", token_bytes, fits=fits, expected=expected)
        )


class GuardedSegmenter(Guarded):
    """See `Segmenter`."""

    point = "segmenter"

    def feed(self, token: int) -> bool:
        expected = "True if the step is complete with this token, else False"
        return self.ask("feed", token, fits=is_bool, expected=expected)


class GuardedFollow(Guarded):
    """See `MayFollow`."""

    point, methods = "may_follow", ("__call__",)

    def __call__(self, node: NodeId, step: Step, logprobs: Sequence[float]) -> bool:
        given, expected = (node, step, logprobs), "True or False"
        return self.ask(
            "__call__", *given, fits=is_bool, expected=expected, note=self.notes(node)
        )


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
        made = ask(
            "controller", inner, "__call__", *given, fits=fits, expected=expected
        )
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
        return wanted

    def depth(self, stats: StepStats) -> int:
        expected, note = "a whole number (an int) of steps", self.notes(None)
        return self.ask("depth", stats, fits=is_whole, expected=expected, note=note)

    def tokens(self, stats: StepStats) -> int | None:
        return self._if_any("tokens", stats, least=0)

    def width(self, stats: StepStats) -> int | None:
        return self._if_any("width", stats, least=1)

    def _if_any(self, method: str, stats: StepStats, *, least: int) -> int | None:
        """A number from an optional method, or None."""
        if not has(self.inner, method):
            return None

        def fits(number: Any) -> bool:
            return number is None or (is_whole(number) and number >= least)

        expected, note = (
            f"a whole number (an int) >= {least}, or None",
            self.notes(None),
        )
        return self.ask(method, stats, fits=fits, expected=expected, note=note)


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
    """Raise `SettingError` for a name or a value in `Variant.settings` that no option
    has."""
    known = {one.name for one in fields(GenerateOptions)}
    for name in variant.settings:
        near = get_close_matches(name, known, 1)
        meant = f"an option of generate{f', such as {near[0]!r}' if near else ''}"
        require(name in known, "a name in Variant.settings", name, meant)
    replace(GenerateOptions(), **variant.settings)


def with_settings(options: GenerateOptions, variant: Variant) -> GenerateOptions:
    """The options, with the variant's settings where the options have their default.

    Raises `SettingError` for parts of the variant that would do nothing in this
    mode."""
    usual = GenerateOptions()
    require_settings(variant)
    options = replace(
        options,
        **{
            n: v
            for n, v in variant.settings.items()
            if getattr(options, n) == getattr(usual, n)
        },
    )
    steps = [name for name in STEPS if getattr(variant, name) is not None]
    tokens = [
        name for name in ("drafter", "rule") if getattr(variant, name) is not None
    ]
    idle = [] if options.looks_ahead else steps
    idle += [] if options.speculates else tokens
    if idle:
        raise SettingError(
            f"mode {options.mode!r} makes no use of the variant's {' and '.join(idle)}; use mode "
            f"{'lr or lr+sd' if steps else 'sd or lr+sd'}."
        )
    return options
