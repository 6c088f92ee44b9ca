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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lr.errors import SettingError
from lr.options import GenerateOptions, Mode, make_options
from lr.rng import Stream
from lr.spec.acceptance import AcceptanceRule
from lr.spec.checks import VariantError, check_names, refuse
from lr.spec.token_sd import Drafter, DrafterSetup
from lr.spec.verifiers.base import Verifier, checked_verifier
from lr.spec.write import Segmenter, TokenBytes
from lr.trace import Progress


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


class Place(NamedTuple):
    """Where a draft step is due: alternative `sibling` (from 0) of the step after
    `tokens`, of which the first `prompt` are the prompt. `stream`: its randomness."""

    tokens: tuple[int, ...]
    prompt: int
    sibling: int
    stream: Stream


class StepSource:
    """The draft's side of a step: writes draft steps in place of the draft model (from a
    store, a template, an earlier answer), or says when the model is to give one up.
    (A `Drafter` proposes tokens.) Both methods must be pure functions."""

    def write(self, places: Sequence[Place]) -> list[Sequence[int] | None]:
        """The tokens of a step for each place, in order: all steps that begin together,
        of all nodes and of all answers in the batch. The draft model writes the step
        instead for None, and for tokens that do not end a step."""
        return [None] * len(places)

    def goes_on(self, tokens: Sequence[int], logprobs: Sequence[float]) -> bool:
        """Whether the draft model goes on with a step of these tokens so far, which have
        these raw log-probabilities. If not, no draft step comes, and the target writes.
        Asked after every token or round."""
        return True

    @property
    def offers_steps(self) -> bool:
        """Whether it has a `write` of its own."""
        return type(self).write is not StepSource.write

    @property
    def gives_up(self) -> bool:
        """Whether it has a `goes_on` of its own."""
        return type(self).goes_on is not StepSource.goes_on


class Part(NamedTuple):
    """A part of a variant. `field` of `Variant`; `base`: the class to derive from;
    `level`: what it decides about; `made`: given as a class or a function that makes
    one for each answer (a segmenter: for each step). Answers in one batch share it.
    """

    field: str
    base: type
    level: str
    made: bool = True


PARTS = (
    Part("verifier", Verifier, "steps", made=False),
    Part("controller", Controller, "steps"),
    Part("segmenter", Segmenter, "both"),
    Part("step_source", StepSource, "steps", made=False),
    Part("drafter", Drafter, "tokens"),
    Part("rule", AcceptanceRule, "tokens"),
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
    is_object = isinstance(value, part.base) and not inspect.isclass(value)
    fits = callable(value) and not is_object if part.made else is_object
    if not fits:
        expected = "a class or a function that makes one"
        if not part.made:
            expected = f"an object, such as {getattr(value, '__name__', 'NAME')}(...)"
        raise VariantError(
            f"the variant's {part.field} is {value!r}; expected {expected} (of a class "
            f"derived from {_name(part)})."
        )
    if isinstance(value, Verifier):
        checked_verifier(value)
    elif isinstance(value, StepSource):
        check_names(part.field, value, StepSource)
        if not (value.offers_steps or value.gives_up):
            refuse("step source", value, "nothing", "write or goes_on")


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
