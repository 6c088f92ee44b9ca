"""Experiment `domains`: the same pipeline on two tiny languages, quantities (sums to be worked out)
and plans (a robot carries out orders).

What Lookahead Reasoning gains hangs on how often two models mean the same, not on mathematics: each
language has its own target, draft and oracle, everything else is one code. The oracle judges in
both, so that no judge's mistakes stand between the two. Each domain is a `Lab` of its own;
`Domains` looks like one lab whose arms are named "tiny/lr", "plans/lr".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lr.lab.eval.experiments.lab import Arm, Lab, Outcome
from lr.lab.eval.experiments.show import Finding
from lr.lab.eval.figure import Bars
from lr.lab.eval.items import Item
from lr.lab.eval.keeping import Keeping, pair_from_json
from lr.lab.eval.report import Row, RunResults
from lr.lab.eval.store import read_object
from lr.lab.eval.tables import notes
from lr.tiny.language import Kind
from lr.tiny.languages import LANGUAGES

FAMILIES = tuple(LANGUAGES)
COLUMNS = (
    *(
        "language",
        "mode",
        "right",
        "95 %",
        "tokens/s",
        "speedup",
        "95 %",
        "steps kept",
        "of orders",
        "tokens kept",
    ),
    *("tokens/pass", "tokens/step", "steps", "wasted"),
)


class Domains:
    """The labs of the languages as one: what `lr experiment` asks of a lab, and no more."""

    def __init__(self, labs: Mapping[str, Lab]) -> None:
        self.labs = dict(labs)
        self.work = next(iter(self.labs.values())).work.parent

    @property
    def items(self) -> Sequence[Item]:
        """The problems of one domain; all have as many."""
        return next(iter(self.labs.values())).items

    def run(self, arms: Sequence[Arm], heard: Callable[[str], None] = lambda name: None) -> Outcome:
        """Every domain in turn; within a domain the arms take turns, and each is compared with the
        domain's own plain decoding.
        """
        runs: dict[str, RunResults] = {}
        rows: dict[str, Row] = {}
        for family, lab in self.labs.items():
            own = [
                replace(arm, name=_bare(arm.name)) for arm in arms if _family(arm.name) == family
            ]
            outcome = lab.run(own, lambda name, family=family: heard(f"{family}/{name}"))  # type: ignore[misc]
            runs |= {f"{family}/{name}": run for name, run in outcome.runs.items()}
            rows |= {f"{family}/{name}": row for name, row in outcome.rows.items()}
        return Outcome(runs, rows)

    def close(self) -> None:
        """End what runs beside."""
        for lab in self.labs.values():
            lab.close()


def arms(lab: Domains) -> list[Arm]:
    """The four modes, tokens guessed by the draft model, and the draft alone; the same in every
    domain.
    """
    guessed = {"drafter": "draft"}
    found = []
    for family, one in lab.labs.items():
        judge = "oracle" if one.verifier == "judge" else one.verifier
        found += [
            Arm(f"{family}/ar", "ar", concurrency=1),
            Arm(f"{family}/sd", "sd", guessed, concurrency=1),
            Arm(f"{family}/lr", "lr", {}, judge, Keeping(pairs=True), concurrency=1),
            Arm(f"{family}/lr+sd", "lr+sd", guessed, judge, concurrency=1),
            Arm(f"{family}/draft", "draft", concurrency=1),
        ]
    return found


def find(lab: Domains, outcome: Outcome) -> Finding:
    """One row per language and mode."""
    shown = [_line(lab, outcome, name, row) for name, row in outcome.rows.items()]
    rows = outcome.rows
    answered = [name for name in rows if _bare(name) in ("ar", "lr", "draft")]
    judged = [name for name in rows if _bare(name) in ("lr", "lr+sd")]
    compared = [name for name in rows if _bare(name) not in ("ar", "draft")]
    return Finding(
        f"Two languages side by side, {next(iter(rows.values())).problems} problems each",
        COLUMNS,
        shown,
        [
            Bars(
                "right (95 % interval)",
                _labels(answered),
                [rows[name].accuracy or 0.0 for name in answered],
                [rows[name].accuracy_interval for name in answered],
                percent=True,
            ),
            Bars("draft steps kept", _labels(judged), [rows[n].step_acceptance or math.nan for n in judged], percent=True),
            Bars("tokens per target pass", _labels(compared), [rows[n].tokens_per_pass or math.nan for n in compared], line=1.0),
            Bars(
                "speedup in tokens/s (95 % interval)",
                _labels(compared),
                [rows[name].speedup or math.nan for name in compared],
                [rows[name].speedup_interval for name in compared],
                line=1.0,
            ),
        ],
        [
            *(f"{one}, {note}" for one in lab.labs for note in notes([r for n, r in rows.items() if _family(n) == one])),
            f"Speedups are against plain decoding in the same language. Verifier in both: {_verifier(outcome)}. of orders: steps kept "
            "among those whose target step is an operation (an order carried out), without goal, start and answer.",
        ],
    )  # fmt: skip


def _line(lab: Domains, outcome: Outcome, name: str, row: Row) -> tuple[object, ...]:
    records = list(outcome.runs[name].records.values())
    lengths = [[step[1] for step in one.get("steps", [])] for one in records]
    steps = [length for some in lengths for length in some]
    return (
        _family(name),
        row.mode,
        row.accuracy,
        row.accuracy_interval,
        row.speed,
        1.0 if row.mode == "ar" else row.speedup,
        row.speedup_interval,
        row.step_acceptance,
        _kept_operations(lab, outcome, name) if row.mode == "lr" else None,
        row.token_acceptance,
        row.tokens_per_pass,
        fmean(steps) if steps else None,
        len(steps) / len(records) if records else None,
        row.wasted_share,
    )


def _kept_operations(lab: Domains, outcome: Outcome, name: str) -> float | None:
    """Of the judged pairs whose target step is an operation, the share that was accepted; None
    where there is none.
    """
    one, parse = lab.labs[_family(name)], LANGUAGES[_family(name)].parse
    said: list[bool] = []
    for key in outcome.runs[name].records:
        kept: dict[str, Any] = read_object(one.work / _bare(name) / "pairs" / key.file)
        for judged in kept["pairs"]:
            pair = pair_from_json(judged, kept["prompt"])
            meaning = None if pair.target is None else parse(one.decode(pair.target.tokens))
            if meaning is not None and meaning.kind is Kind.OPERATION:
                said.append(bool(judged["verdict"]["aligned"]))
    return fmean(said) if said else None


def _verifier(outcome: Outcome) -> str:
    found = {
        str(run.settings["verifier"])
        for run in outcome.runs.values()
        if run.settings.get("verifier")
    }
    return ", ".join(sorted(found))


def _labels(names: Sequence[str]) -> list[str]:
    return [name.replace("/", " ") for name in names]


def _family(name: str) -> str:
    return name.partition("/")[0]


def _bare(name: str) -> str:
    return name.partition("/")[2]
