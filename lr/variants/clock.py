"""A variant on the simulated clock: its speedup at a given acceptance and its own
costs.

    lr theory --variant best_of --alpha 0.7

The clock knows how long steps take and whether the verifier would accept them, not
their text. So it runs the parts that decide by counts and verdicts: the schedule, the
router, the chooser, the controller's depth and width, and what the verifier requires. A
chooser sees scores that are uniform on [0, 1), and equal log-probabilities. Parts that
read steps cannot run; their effect must be given as costs and acceptance. A step has
one token, which no model draws. So there are no rounds, a controller's `tokens` is not
called, and entropies are None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lr.errors import SettingError
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.rng import Stream, uniform
from lr.spec.guard import guarded
from lr.spec.protocol import (
    Chooser,
    FirstAligned,
    Place,
    Schedule,
    SchedulerConfig,
    Wait,
    WorkKind,
)
from lr.spec.variant import Controller, StepStats, Variant
from lr.spec.verifiers.base import Pair, Requires
from lr.theory.distributions import Bernoulli, BetaSiblings, Constant
from lr.theory.formula_vs_simulation import Point, rate, siblings
from lr.theory.simulate import ENDLESS, SimulationOutcome, World, simulate
from lr.trace import Stats
from lr.types import require
from lr.variants.loading import load_variant

UNSEEN = ("segmenter", "corrector", "proposer", "may_follow", "drafter", "rule")
"""The parts that must read steps or tokens."""
COLUMNS = (
    "way", "schedule", "speedup", "± s.e.", "accepted / judged", "target steps / step",
    "draft steps / step", "verdict", "score",
)  # fmt: skip
NOTES = """\
speedup: over plain decoding. verdict, score: the time of a verdict, and of reading a draft step to
judge it without a target step. --beta sets how similar the alternatives at one place are."""


@dataclass(frozen=True)
class Scored:
    """A chooser that sees drawn scores, since no models run."""

    inner: Chooser
    seed: int

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        """The chooser's choice. Scores are drawn with the name of each alternative as
        key."""
        streams = [
            Stream.root(self.seed).fold_in("score", *child) for child in place.children
        ]
        verdicts = [
            replace(v, score=uniform(s.key(0)))
            for v, s in zip(place.verdicts, streams, strict=True)
        ]
        pairs = tuple(
            Pair((), draft, None, (0.0,), None, (0.0,), (0.0,), stream)
            for draft, stream in zip(place.drafts, streams, strict=True)
        )
        return self.inner.choose(replace(place, verdicts=tuple(verdicts), pairs=pairs))


def costs_of(variant: Variant, at: Point) -> dict[str, float]:
    """The variant's own costs, and those of the point where it has none."""
    known = {"judge": at.v, "score": at.v, "draft": at.c, "target": 1.0}
    for name, value in variant.costs.items():
        require(
            name in known, "a name in Variant.costs", name, f"one of {', '.join(known)}"
        )
        require(
            value >= 0,
            f"Variant.costs[{name!r}]",
            value,
            "a time >= 0, in target steps",
        )
    return known | dict(variant.costs)


def simulated(variant: Variant, at: Point) -> tuple[SchedulerConfig, SimulationOutcome]:
    """Run the variant's scheduler in the world of a point.

    Depth and width are the variant's settings, by default --k and 1."""
    parts, usual = guarded(variant), GenerateOptions()
    own: Mapping[str, Any] = {"depth": at.k, "width": 1, "schedule": usual.schedule}
    own = {name: variant.settings.get(name, value) for name, value in own.items()}
    verifier, control = parts.verifier, parts.controller
    sees = Requires.TARGET_STEP if verifier is None else verifier.requires
    early = verifier is not None and verifier.early_requires is not None
    chooser = (
        FirstAligned() if parts.chooser is None else Scored(parts.chooser, at.seed)
    )
    config = (parts.schedule or SchedulerConfig)(
        ENDLESS,
        Schedule(own["schedule"]),
        own["depth"],
        own["width"],
        needs_target_step=bool(sees & Requires.TARGET_STEP) and not early,
        router=parts.router,
        chooser=chooser,
    )
    costs, wide = costs_of(variant, at), own["width"] > 1
    world = World(
        BetaSiblings(*siblings(at))
        if wide and 0 < at.alpha < 1
        else Bernoulli(at.alpha),
        target=Constant(costs["target"]),
        draft=Constant(costs["draft"]),
        judge=Constant(costs["judge"]),
        score=Constant(costs["score"]),
        target_overhead=at.b if config.barrier else 0.0,
        draft_workers=None if wide else 1,
        seed=at.seed,
    )
    made: Any = control("") if callable(control) else control
    least = 1 if config.schedule is Schedule.PAPER else 0

    def ahead(stats: Stats) -> tuple[int, int | None]:
        told = StepStats(**vars(stats))  # without entropies
        depth = max(least, min(int(made.depth(told)), config.depth))
        return depth, made.width(told)

    return config, simulate(
        config, world, at.steps, control=None if made is None else ahead
    )


def _not_told(name: str, variant: Variant) -> list[str]:
    """A note on what the variant's controller cannot do on this clock."""
    control: Any = guarded(variant).controller
    made = control("") if callable(control) else control
    if made is None:
        return []
    own = (
        getattr(type(made.inner), "tokens", Controller.tokens) is not Controller.tokens
    )
    missing = ["`tokens`, since a step has one token here"] if own else []
    missing += ["entropies, since nothing is drawn here"] if made.entropies else []
    return (
        [f"{name}: its controller goes without {' and '.join(missing)}."]
        if missing
        else []
    )


def rows_of(names: Sequence[str], at: Point) -> list[tuple[list[str], list[str]]]:
    """Rows of the table, with notes, for Lookahead Reasoning itself and for each
    variant."""
    found = [("lr", Variant())]
    with Reasoner() as reasoner:
        found += [(name, load_variant(name, reasoner)) for name in names]
    rows = []
    for name, variant in found:
        unseen = [part for part in UNSEEN if getattr(variant, part) is not None]
        if variant.settings.get("mode") in ("ar", "sd"):
            raise SettingError(
                f"variant {name!r} works on tokens ({', '.join(unseen)}); the clock only has steps."
            )
        config, outcome = simulated(variant, at)
        costs, speed, accepted = (
            costs_of(variant, at),
            rate(outcome),
            outcome.acceptance,
        )
        shape = f"{config.schedule.value} {config.depth}"
        shape += f", width {config.width}" if config.width > 1 else ""
        begun = {kind: outcome.workers[kind].begun / outcome.steps for kind in WorkKind}
        cells = [name, shape, f"{speed.value:.3f}", f"{speed.error:.3f}"]
        cells += ["" if accepted is None else f"{accepted:.3f}"]
        cells += [f"{begun[WorkKind.TARGET]:.2f}", f"{begun[WorkKind.DRAFT]:.2f}"]
        cells += [
            f"{costs['judge']:.3g}",
            "" if config.needs_target_step else f"{costs['score']:.3g}",
        ]
        left = f"{name}: without its {' and '.join(unseen)}, which would have to read the steps."
        rows.append((cells, ([left] if unseen else []) + _not_told(name, variant)))
    return rows
