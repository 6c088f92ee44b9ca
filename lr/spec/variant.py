"""A variant of the method: at most six parts that replace the usual ones.

`PARTS` is the one list of them; loading, `lr check`, headings and `docs/variants.md`
read it. The base classes of four parts are defined here, the others beside the code
that calls them: `verifiers/base.py`, `write.py` (segmenter), `token_sd.py` (drafter)
and `acceptance.py` (rule).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

from lr.errors import SettingError
from lr.options import GenerateOptions, Mode, make_options
from lr.spec.acceptance import AcceptanceRule
from lr.spec.checks import VariantError, check_names, refuse
from lr.spec.token_sd import Drafter, DrafterSetup
from lr.spec.verifiers.base import Verifier, check_verifier
from lr.spec.write import Segmenter, TokenBytes
from lr.trace import Stats, TokenRounds


@dataclass(frozen=True)
class Progress:
    """What a controller may know: counts up to the last emitted step, never times, so
    an answer depends on no clock.

    Of `drafted` draft steps `judged` have a verdict, and `accepted` are emitted.
    `rounds`: of token-level speculation.
    """

    steps: int = 0  # emitted
    tokens: int = 0  # in them
    accepted: int = 0
    judged: int = 0  # accepted / judged is alpha 1
    drafted: int = 0
    target_passes: int = 0  # forwards
    draft_passes: int = 0
    rounds: TokenRounds = field(default_factory=TokenRounds)

    @classmethod
    def of(cls, stats: Stats) -> Progress:
        """The counts among these statistics."""
        return cls(**{f.name: getattr(stats, f.name) for f in fields(cls)})  # no times


class Controller(ABC):
    """Adapts depth and draft tokens during an answer. Each answer has its own."""

    @abstractmethod
    def depth(self, progress: Progress) -> int:
        """How many steps to look ahead from now on, clipped to 0 (`paper`: 1) .. the
        run's depth. Called after every emitted step. Work that has begun continues.
        """

    def tokens(self, progress: Progress) -> int | None:
        """The most draft tokens per round in target steps that begin from now on, up to
        the run's own number (also used for None). Called after `depth`.
        """
        return None


class StepSource(ABC):
    """Writes draft steps in place of the draft model: from a store, a template, an
    earlier answer. (A `Drafter` proposes tokens.)"""

    @abstractmethod
    def step_after(
        self, tokens: tuple[int, ...], prompt: int, sibling: int
    ) -> Sequence[int] | None:
        """The tokens of alternative `sibling` (from 0) of the step after `tokens`, of
        which the first `prompt` are the prompt. The draft model writes the step instead
        for None, and for tokens that do not end a step. Must be a pure function.
        """


class Given(Enum):
    """How a part is given to `Variant`."""

    OBJECT = "an object"
    PER_ANSWER = "a class or a function that makes one for each answer"
    PER_STEP = "a class or a function that makes one for each step"


class Part(NamedTuple):
    """A part of a variant. `field` of `Variant`; `base`: the class to derive from;
    `level`: what it decides about. An answer's batch shares what is made per answer.
    """

    field: str
    base: type
    given: Given
    level: str


PARTS = (
    Part("verifier", Verifier, Given.OBJECT, "steps"),
    Part("controller", Controller, Given.PER_ANSWER, "steps"),
    Part("segmenter", Segmenter, Given.PER_STEP, "both"),
    Part("step_source", StepSource, Given.OBJECT, "steps"),
    Part("drafter", Drafter, Given.PER_ANSWER, "tokens"),
    Part("rule", AcceptanceRule, Given.PER_ANSWER, "tokens"),
)


@dataclass(frozen=True)
class Variant:
    """The parts that a variant replaces (None: the usual part), for `Reasoner.generate`
    and `run`. `PARTS` says how each is given.

    `settings` are options of `generate` that the method needs; options of the caller
    win (on the command line and in the stepper: options that differ from the default).
    A variant with parts for tokens only sets mode "sd". `name`: by which it was loaded.
    `file` defines it, if that is not a module (`lr/variants/loading.py` sets both).
    """

    verifier: Verifier | None = None
    controller: Callable[[], Controller] | None = None
    segmenter: Callable[[TokenBytes], Segmenter] | None = None
    step_source: StepSource | None = None
    drafter: Callable[[DrafterSetup], Drafter] | None = None
    rule: Callable[[], AcceptanceRule] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        for part in self.replaced:
            _check_given(part, getattr(self, part.field))
        levels = {part.level for part in self.replaced}
        if "tokens" in levels and "steps" not in levels:
            object.__setattr__(self, "settings", {"mode": "sd", **self.settings})
        make_options(**self.settings)  # refuses names and values that no option has

    @property
    def replaced(self) -> list[Part]:
        """The parts that this variant has."""
        return [part for part in PARTS if getattr(self, part.field) is not None]

    def make(self, field: str, *arguments: Any) -> Any:
        """What the part makes, checked; None if the variant has no such part."""
        make = getattr(self, field)
        if make is None:
            return None
        value = make(*arguments)
        [part] = [part for part in PARTS if part.field == field]
        if not isinstance(value, part.base):
            expected = f"an object of a class derived from {_name(part)}"
            refuse(field, make, value, expected)
        check_names(field, value, part.base)
        return value


def _check_given(part: Part, value: Any) -> None:
    if part.given is Given.OBJECT:
        fits = isinstance(value, part.base)
    else:
        is_object = isinstance(value, part.base) and not inspect.isclass(value)
        fits = callable(value) and not is_object
    if not fits:
        hint = f", such as {value.__name__}(...)" if inspect.isclass(value) else ""
        raise VariantError(
            f"the variant's {part.field} is {value!r}; expected {part.given.value}{hint} "
            f"(of a class derived from {_name(part)})."
        )
    if isinstance(value, Verifier):
        check_verifier(value)
    elif part.given is Given.OBJECT:
        check_names(part.field, value, part.base)


def _name(part: Part) -> str:
    return f"{part.base.__module__}.{part.base.__qualname__}"


def apply_settings(
    options: GenerateOptions, variant: Variant, usual_mode: Mode
) -> GenerateOptions:
    """The options, with the variant's settings where the options have their default,
    and the usual mode unless options or variant name one.

    Raises `SettingError` for parts of the variant that would do nothing in this mode.
    """
    usual = GenerateOptions()
    free = {
        name: value
        for name, value in variant.settings.items()
        if getattr(options, name) == getattr(usual, name)
    }
    options = replace(options, **free)
    if options.mode is None:
        options = replace(options, mode=usual_mode)
    active = {
        "steps": options.looks_ahead,
        "tokens": options.speculates,
        "both": True,
    }
    idle = [part.field for part in variant.replaced if not active[part.level]]
    if idle:
        for_tokens = variant.drafter or variant.rule
        advice = "mode sd or lr+sd" if for_tokens else "mode lr or lr+sd"
        raise SettingError(
            f"mode {options.mode!r} makes no use of the variant's "
            f"{' and '.join(idle)}; use {advice}."
        )
    return options
