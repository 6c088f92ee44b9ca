"""`check`: which extension point a part is for, and what every part must do.

A part must be a function of its arguments. So each check asks several fresh objects the same
questions in different orders, with different states of the global random number generators, and
compares. What is special about an extension point is in `steps.py` (steps) and `tokens.py` (token
level).
"""

from __future__ import annotations

import gc
import inspect
import random
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lr.registry import find
from lr.spec.protocol import SchedulerConfig
from lr.spec.variant import Variant
from lr.testing.guard import require_settings
from lr.types import require

if TYPE_CHECKING:
    from lr.reasoner import Reasoner

POINTS = {
    "judge": "verifier", "choose": "chooser", "who_writes": "router", "depth": "controller",
    "outcomes": "rule", "forget": "drafter", "propose": "proposer", "keep": "corrector",
    "feed": "segmenter",
}  # fmt: skip
"""The extension point of a part, by a method that only its kind has (the first that fits)."""
PARTS = (*POINTS.values(), "may_follow", "schedule")
QUESTIONS = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?",
    "At first Cleo has 12 coins. Then Cleo gives 5 coins to Dan. How many coins does Cleo have?",
    "At first Ben has 4 coins. Then Ann gets twice as many coins as Ben. How many has Ann?",
)
"""Questions for the tiny models."""


class ContractError(AssertionError):
    """A part breaks the contract of its extension point."""


@dataclass
class Checked:
    """What `check` found: the extension point, the checks that were passed, and what a call
    costs."""

    point: str
    part: str
    passed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def must(self, holds: bool, what: str, got: object) -> None:
        """Note a check as passed, or raise `ContractError`."""
        if not holds:
            raise ContractError(f"{self.point} {self.part}: expected that {what}; got {got}.")
        if what not in self.passed:
            self.passed.append(what)

    def __str__(self) -> str:
        cost = f"{1e6 * self.seconds:.0f} us a call"
        return "\n".join([f"{self.point} {self.part}: {len(self.passed)} checks passed, {cost}",
                          *(f"  {one}" for one in [*self.passed, *self.notes])])  # fmt: skip


def check(
    make: Callable[..., Any], *, vocab_size: int = 64, point: str | None = None, **known: Any
) -> Checked:
    """Hold what `make` makes against the contract of its extension point, which is found by its
    methods; `point` names it where an object is for two.

    `make` is a class or a function without arguments that gives a *new* object each time; for a
    drafter one that takes (runner, sampling) if it needs a draft model, for a segmenter one that
    takes `token_bytes`. `vocab_size`: token ids in the questions are below it. `known` goes on to
    the check of that point: `pairs` for a verifier that cannot read random tokens, `width` for a
    schedule. `may_follow` is given as it is, a function of (node, step, logprobs); a schedule as
    its class.

    Raises `ContractError` for a broken contract, and what the part itself raises.
    """
    if not callable(make):
        raise TypeError(
            f"check({make!r}): expected a class or a function that makes a new object each time, "
            "since one object cannot show whether it remembers."
        )
    point = _point(make) if point is None else point
    require(point in PARTS, "point", point, "the name of an extension point")
    found = Checked(point, _called(make))
    place = "tokens" if point in ("rule", "drafter") else "steps"
    find(f"lr.testing.{place}:check_{point}")(found, make, vocab_size, **known)
    return found


def check_variant(make: Callable[[], Variant], **known: Any) -> list[Checked]:
    """`check` every part of the variant that `make` makes anew each time, and its settings. `known`
    as there.
    """
    found, variant = [], _made(make)
    require_settings(variant)
    for name in PARTS:
        part = getattr(variant, name)
        if part is None:
            continue
        asked = name in ("segmenter", "drafter", "may_follow", "schedule")  # makers, functions
        if asked or (name == "controller" and callable(part)):
            found.append(check(part, point=name, **known))
        else:
            found.append(check(_fresh(make, name, part), point=name, **known))
    return found


def check_answers(
    make: Callable[[], Variant],
    reasoner: Reasoner,
    questions: Sequence[str] = QUESTIONS,
    **options: Any,
) -> Checked:
    """Hold a whole variant against what `check` cannot see, state that its parts share: an answer
    has the same steps alone, from a new variant, as beside the others, from one variant for all.

    `make` as for `check_variant`; `reasoner` in float64, where company does not change a rounding;
    `options` as for `generate`. Raises `ContractError`, and what a part itself raises.
    """
    dtype = getattr(reasoner.models.target, "dtype", None)
    require(dtype is torch.float64, "dtype of the reasoner", dtype, "torch.float64")
    several = not isinstance(questions, str) and len(questions) > 1
    require(several, "questions", questions, "at least two texts: alone nobody is beside others")
    found, one = Checked("variant", _called(make)), _made(make)
    how = {"seed": 1, "max_tokens": 100, **options}
    runs = [reasoner.run(question, variant=one, **how) for question in questions]
    for _ in reasoner.engine.serve(runs, len(runs)):
        pass
    for run in runs:
        alone = reasoner.generate(run.question, variant=make(), **how)
        texts = [[step.text for step in steps] for steps in (alone.steps, run.steps)]
        what = "an answer has the same steps alone and beside others"
        found.must(texts[0] == texts[1], what, f"{texts[0]} and {texts[1]} to {run.question!r}")
    return found


def _made(make: Callable[[], Variant]) -> Variant:
    variant = make()
    if not isinstance(variant, Variant):
        raise TypeError(f"make() is {variant!r}, expected a Variant, new each time.")
    return variant


def _fresh(make: Callable[[], Variant], name: str, part: object) -> Callable[[], Any]:
    """Makes the part of a new variant; messages call it by its class."""

    def fresh() -> Any:
        return getattr(make(), name)

    fresh.__qualname__ = type(part).__name__
    return fresh


def _point(make: Callable[..., Any]) -> str:
    """The extension point of what `make` makes."""
    names = list(inspect.signature(make).parameters)
    if not inspect.isclass(make) and names[:3] == ["node", "step", "logprobs"]:
        return "may_follow"
    like = make
    if not inspect.isclass(make):
        if "token_bytes" in names:
            return "segmenter"
        if names[:2] == ["runner", "sampling"]:
            return "drafter"
        like = make()
    if inspect.isclass(like) and issubclass(like, SchedulerConfig):
        return "schedule"
    for method, point in POINTS.items():
        if callable(getattr(like, method, None)):
            return point
    raise ContractError(
        f"{_called(make)} makes {like!r}, which is for no extension point; expected an object "
        f"with one of the methods {', '.join(POINTS)}, or a function "
        f"may_follow(node, step, logprobs)."
    )


def _called(make: Callable[..., Any]) -> str:
    return str(getattr(make, "__qualname__", make)).replace(".<locals>", "")


def same_everywhere(
    found: Checked,
    make: Callable[[], Any],
    ask: Callable[[Any, Any], Any],
    questions: Sequence[Any],
    *,
    equal: Callable[[Any, Any], bool] = lambda a, b: bool(a == b),
) -> list[Any]:
    """The answers to `questions`. They must be the same from every object, in every order, asked
    again, and whatever the global random number generators hold.
    """
    part, started = make(), time.perf_counter()
    first = [ask(part, question) for question in questions]
    found.seconds = (time.perf_counter() - started) / max(1, len(questions))
    again = [ask(part, question) for question in questions]
    _agree(found, first, again, "the same question gets the same answer again", equal)

    def disturbed(order: list[int], part: Any) -> list[Any]:
        answers: dict[int, Any] = {}
        for i in order:
            random.seed(i)
            torch.manual_seed(i)
            answers[i] = ask(part, questions[i])
        return [answers[i] for i in range(len(questions))]

    states = random.getstate(), torch.get_rng_state()
    try:
        backwards = disturbed(list(range(len(questions)))[::-1], make())
        order = list(range(len(questions)))
        random.Random(1).shuffle(order)
        shuffled = disturbed(order, make())
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
    what = "answers depend neither on the order of the questions nor on a global generator"
    _agree(found, first, backwards, what, equal)
    _agree(found, first, shuffled, what, equal)
    one, other, mixed = make(), make(), []
    for question in questions:
        mixed.append(ask(one, question))
        ask(other, question)
    _agree(found, first, mixed, "two objects share no state", equal)
    return first


def _agree(
    found: Checked, first: list[Any], other: list[Any], what: str, equal: Callable[[Any, Any], bool]
) -> None:
    for i, (a, b) in enumerate(zip(first, other, strict=True)):
        found.must(equal(a, b), what, f"{a!r} and {b!r} for question {i}")
    found.must(True, what, None)


def keeps_nothing(found: Checked, call: Callable[[Any], object], arguments: list[Any]) -> None:
    """Whether what is handed to a part is free after the call. The list is emptied; nobody else may
    hold what is in it.
    """
    alive, one = [], None
    while arguments:
        one = arguments.pop()
        alive.append(weakref.ref(one))
        call(one)
    count, one = len(alive), None
    gc.collect()
    left = sum(ref() is not None for ref in alive)
    found.must(left <= max(1, count // 4), "a part keeps nothing of what it was given (no leak)",
               f"{left} of {count} still held after the calls")  # fmt: skip
