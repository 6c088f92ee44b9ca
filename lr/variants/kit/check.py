"""`check`: finds the extension point of a part, and tests what every part must do.

A part must be a function of its arguments. So each check asks several fresh objects the
same questions in different orders, with different states of the global random number
generators, and compares the answers. `steps.py` and `tokens.py` have the checks of
single extension points."""

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
from lr.spec.guard import require_settings
from lr.spec.protocol import SchedulerConfig
from lr.spec.variant import Variant
from lr.types import require

if TYPE_CHECKING:
    from lr.reasoner import Reasoner

POINTS = {
    "judge": "verifier", "choose": "chooser", "who_writes": "router", "depth": "controller",
    "outcomes": "rule", "forget": "drafter", "propose": "proposer", "keep": "corrector",
    "feed": "segmenter",
}  # fmt: skip
"""The extension point of a part, by a method that only its kind has. The first match
counts."""
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
    """The result of `check`: the extension point, the checks passed, and the time of a
    call."""

    point: str
    part: str
    passed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def must(self, holds: bool, what: str, got: object) -> None:
        """Record a check as passed, or raise `ContractError`."""
        if not holds:
            raise ContractError(
                f"{self.point} {self.part}: expected that {what}; got {got}."
            )
        if what not in self.passed:
            self.passed.append(what)

    def __str__(self) -> str:
        cost = f"{1e6 * self.seconds:.0f} us a call"
        return "\n".join([f"{self.point} {self.part}: {len(self.passed)} checks passed, {cost}",
                          *(f"  {one}" for one in [*self.passed, *self.notes])])  # fmt: skip


def check(
    make: Callable[..., Any],
    *,
    vocab_size: int = 64,
    point: str | None = None,
    **known: Any,
) -> Checked:
    """Test the objects that `make` makes against the contract of their extension point.

    The point is found by their methods; `point` names it if an object fits two. `make`
    is a class or a function without arguments that returns a *new* object each time.
    For a drafter that needs a draft model it takes (runner, sampling), for a segmenter
    `token_bytes`. `may_follow` is given directly, as a function of (node, step,
    logprobs), and a schedule as its class. `vocab_size` bounds the token ids in the
    questions. `known` is passed to the check of the point: `pairs` for a verifier that
    cannot read random tokens, `width` for a schedule.

    Raises `ContractError` for a broken contract, and any exception of the part
    itself."""
    if not callable(make):
        raise TypeError(
            f"check({make!r}): expected a class or a function that makes a new object each time, "
            "since one object cannot show whether it remembers."
        )
    point = _point(make) if point is None else point
    require(point in PARTS, "point", point, "the name of an extension point")
    found = Checked(point, _called(make))
    place = "tokens" if point in ("rule", "drafter") else "steps"
    find(f"lr.variants.kit.{place}:check_{point}")(found, make, vocab_size, **known)
    return found


def check_variant(make: Callable[[], Variant], **known: Any) -> list[Checked]:
    """`check` the settings and all parts of the variant that `make` makes, a new one
    each time."""
    found, variant = [], _made(make)
    require_settings(variant)
    for name in PARTS:
        part = getattr(variant, name)
        if part is None:
            continue
        given = name in (
            "segmenter",
            "drafter",
            "may_follow",
            "schedule",
        )  # functions and classes
        if not given and not (name == "controller" and callable(part)):
            part = _fresh(make, name, part)
        found.append(check(part, point=name, **known))
    return found


def check_answers(
    make: Callable[[], Variant],
    reasoner: Reasoner,
    questions: Sequence[str] = QUESTIONS,
    **options: Any,
) -> Checked:
    """Test a whole variant for state that its parts share, which `check` cannot see.

    An answer must have the same steps alone, from a new variant, as together with the
    other answers, from one variant for all. `make` as for `check_variant`. `reasoner`
    must be in float64, where a batch does not change the rounding of its rows.
    `options` as for `generate`. Raises `ContractError`, and any exception of a part
    itself."""
    dtype = getattr(reasoner.models.target, "dtype", None)
    require(dtype is torch.float64, "dtype of the reasoner", dtype, "torch.float64")
    several = not isinstance(questions, str) and len(questions) > 1
    require(
        several, "questions", questions, "at least two texts, to be answered together"
    )
    found, one = Checked("variant", _called(make)), _made(make)
    how = {"seed": 1, "max_tokens": 100, **options}
    runs = [reasoner.run(question, variant=one, **how) for question in questions]
    for _ in reasoner.engine.serve(runs, len(runs)):
        pass
    for run in runs:
        alone = reasoner.generate(run.question, variant=make(), **how)
        texts = [[step.text for step in steps] for steps in (alone.steps, run.steps)]
        what = "an answer has the same steps alone and together with others"
        found.must(
            texts[0] == texts[1], what, f"{texts[0]} and {texts[1]} to {run.question!r}"
        )
    return found


def _made(make: Callable[[], Variant]) -> Variant:
    variant = make()
    if not isinstance(variant, Variant):
        raise TypeError(f"make() is {variant!r}, expected a Variant, new each time.")
    return variant


def _fresh(make: Callable[[], Variant], name: str, part: object) -> Callable[[], Any]:
    """A function that makes the part of a new variant, named after the part's class."""

    def fresh() -> Any:
        return getattr(make(), name)

    fresh.__qualname__ = type(part).__name__
    return fresh


def _point(make: Callable[..., Any]) -> str:
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
    """The answers to `questions`, which must not depend on anything else.

    They must be the same from every object, in every order, when repeated, and for
    every state of the global random number generators."""
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
    what = (
        "answers depend neither on the order of the questions nor on a global generator"
    )
    _agree(found, first, backwards, what, equal)
    _agree(found, first, shuffled, what, equal)
    one, other, mixed = make(), make(), []
    for question in questions:
        mixed.append(ask(one, question))
        ask(other, question)
    _agree(found, first, mixed, "two objects share no state", equal)
    return first


def _agree(
    found: Checked,
    first: list[Any],
    other: list[Any],
    what: str,
    equal: Callable[[Any, Any], bool],
) -> None:
    for i, (a, b) in enumerate(zip(first, other, strict=True)):
        found.must(equal(a, b), what, f"{a!r} and {b!r} for question {i}")
    found.must(True, what, None)


def keeps_nothing(
    found: Checked, call: Callable[[Any], object], arguments: list[Any]
) -> None:
    """A part must not keep its arguments. Empties the list, which must hold the only
    references."""
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
