"""From run directories to one row each, and to speedups against a baseline: the numbers of `lr
report`.

Reads what `lr run` writes and what the official tool writes (no settings, no grades, no statistics:
answers are graded here from the text behind the prompt). Runs are compared only where they answer
the same questions with the same sampling; everything else is refused, because a number that looks
like a speedup will be read as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lr.errors import SettingError
from lr.lab.eval.grading import Grader
from lr.lab.eval.items import Item, Task
from lr.lab.eval.statistics import Interval, accuracy, ratio, sign_test
from lr.lab.eval.store import Key, Store

SAME = ("data", "seed", "temperature", "top_p", "top_k", "min_p", "max_tokens_len", "model")
"""Settings in which runs must agree to be compared; the target's name with them, unless one of them
is the draft alone.
"""
NEVER = {"draft"}
"""Modes that are shown beside the others although their model differs."""


@dataclass(frozen=True)
class RunResults:
    """A run as it lies on disk. `settings` is empty for a run of the official tool."""

    path: Path
    records: dict[Key, dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    sessions: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def mode(self) -> str:
        return str(self.settings.get("mode", "?"))


def read_run(path: Path, grader: Grader) -> RunResults:
    """Read a directory of `lr run` or of the official tool. Answers without a grade are graded.
    Raises `SettingError`.
    """
    if not path.is_dir():
        raise SettingError(
            f"{path} is no directory; give the folders that lr run, or the official tool, has written."
        )
    store = Store(path)
    records = dict(store.results())
    if not records:
        inside = sorted(one.name for one in path.iterdir())[:5]
        raise SettingError(
            f"{path} has no results (expected 0.json, 1.json, ...; it has {', '.join(inside) if inside else 'nothing'})."
        )
    head = store.settings() or {}
    for record in records.values():
        if "right" not in record:
            _grade(record, grader)
    return RunResults(
        path,
        records,
        head.get("settings", {}),
        tuple(head.get("devices", ())),
        tuple(store.sessions()),
    )


def _grade(record: dict[str, Any], grader: Grader) -> None:
    """Grade a record of the official tool: its gold answer against what stands behind the
    prompt.
    """
    text = record.get("generation_text")
    if text is None:
        prompt = record.get("target_prompt", "")
        text = record.get("full_text", "").removeprefix(prompt)
    gold = record.get("gold")
    item = Item(
        0,
        record.get("question", ""),
        Task.FREE if gold is None else Task.MATH,
        None if gold is None else str(gold),
    )
    grade = grader.grade(item, text)
    record |= {"right": grade.right, "answer": grade.answer, "why": grade.why}


@dataclass(frozen=True)
class Row:
    """One run in numbers; None where there is nothing to count. Speeds are in tokens per second,
    times in seconds.

    `speed` is all tokens over all seconds; `mean_speed` and `median_speed` are over answers, as the
    official tool reports them (short answers weigh as much as long ones there). `length_ratio`:
    tokens against the baseline's; an answer that is shorter looks faster.
    """

    name: str
    mode: str
    answers: int
    problems: int
    accuracy: float | None
    accuracy_interval: Interval | None
    unread: int
    unfinished: int
    tokens: int
    seconds: float
    speed: float | None
    mean_speed: float | None
    median_speed: float | None
    throughput: float | None
    step_acceptance: float | None
    token_acceptance: float | None
    wasted_share: float | None
    target_passes: int | None
    tokens_per_pass: float | None
    judge_seconds: float | None
    devices: tuple[str, ...]
    speedup: float | None = None
    speedup_interval: Interval | None = None
    time_ratio: float | None = None
    length_ratio: float | None = None
    flips: tuple[int, int] | None = None
    flip_p: float | None = None


def make_row(run: RunResults, baseline: RunResults | None = None) -> Row:
    """The row of a run, with its comparison where there is a baseline. Raises `SettingError` where
    the two cannot be compared.
    """
    records = list(run.records.values())
    grades: dict[int, list[bool]] = {}
    for key, record in run.records.items():
        if record.get("right") is not None:
            grades.setdefault(key.number, []).append(bool(record["right"]))
    known = accuracy(list(grades.values())) if grades else None
    tokens, seconds = (
        sum(map(_tokens, records)),
        sum(record.get("time_taken", 0.0) for record in records),
    )
    speeds = [record["speed"] for record in records if record.get("speed")]
    total = _summed(records)
    wall = sum(session.get("seconds", 0.0) for session in run.sessions)
    row = Row(
        name=run.name,
        mode=run.mode,
        answers=len(records),
        problems=len({key.number for key in run.records}),
        accuracy=known[0] if known else None,
        accuracy_interval=known[1] if known else None,
        unread=sum(
            record.get("right") is False and record.get("answer") is None for record in records
        ),
        unfinished=sum(record.get("finished") is False for record in records),
        tokens=tokens,
        seconds=seconds,
        speed=tokens / seconds if seconds else None,
        mean_speed=fmean(speeds) if speeds else None,
        median_speed=median(speeds) if speeds else None,
        throughput=sum(session.get("tokens", 0) for session in run.sessions) / wall
        if wall
        else None,
        step_acceptance=_over(total, "accepted", "judged"),
        token_acceptance=_over(total, "rounds.accepted", "rounds.drafted"),
        wasted_share=_over(total, "wasted_target_tokens", "target_tokens"),
        target_passes=int(total["target_passes"]) if total else None,
        tokens_per_pass=_over(total, "tokens", "target_passes"),
        judge_seconds=total.get("verifier_seconds") if total else None,
        devices=run.devices,
    )
    return row if baseline is None or baseline is run else _compared(row, run, baseline)


def _compared(row: Row, run: RunResults, baseline: RunResults) -> Row:
    require_comparable(run, baseline)
    common = sorted(run.records.keys() & baseline.records.keys())
    if not common:
        raise SettingError(
            f"{run.name} and {baseline.name} have no answer in common (problem and sample); there is nothing to pair."
        )
    by_problem: dict[int, list[float]] = {}
    better = worse = 0
    for key in common:
        mine, theirs = run.records[key], baseline.records[key]
        sums = by_problem.setdefault(key.number, [0.0, 0.0, 0.0, 0.0])
        for place, value in enumerate(
            (_tokens(mine), mine["time_taken"], _tokens(theirs), theirs["time_taken"])
        ):
            sums[place] += value
        better += mine.get("right") is True and theirs.get("right") is False
        worse += mine.get("right") is False and theirs.get("right") is True
    pairs = [((a, b), (c, d)) for a, b, c, d in by_problem.values()]
    speedup, interval = ratio(pairs)
    tokens, seconds = (sum(a for (a, _), _ in pairs), sum(b for (_, b), _ in pairs))
    base_tokens, base_seconds = (sum(c for _, (c, _) in pairs), sum(d for _, (_, d) in pairs))
    return Row(
        **{name: getattr(row, name) for name in Row.__dataclass_fields__}
        | {
            "speedup": speedup,
            "speedup_interval": interval,
            "time_ratio": base_seconds / seconds if seconds else None,
            "length_ratio": tokens / base_tokens if base_tokens else None,
            "flips": (better, worse),
            "flip_p": sign_test(better, worse),
        }
    )


def require_comparable(run: RunResults, baseline: RunResults) -> None:
    """Raises `SettingError` where two runs differ in data or sampling."""
    if run.settings and baseline.settings:
        names = [name for name in SAME if name != "model" or not {run.mode, baseline.mode} & NEVER]
        differ = [name for name in names if run.settings.get(name) != baseline.settings.get(name)]
    else:
        common = run.records.keys() & baseline.records.keys()
        other = [
            key
            for key in common
            if run.records[key].get("question") != baseline.records[key].get("question")
        ]
        differ = ["questions"] if other else []
    if differ:
        values = ", ".join(
            f"{name}: {run.settings.get(name)!r} and {baseline.settings.get(name)!r}"
            for name in differ
        )
        raise SettingError(
            f"{run.name} and {baseline.name} cannot be compared: they differ in {values}. Report them apart, or run one of them again."
        )


def choose_baseline(runs: Sequence[RunResults], name: str | None = None) -> RunResults | None:
    """The baseline: the run of that name, else the first in mode ar; None where there is none."""
    if name is None:
        return next((run for run in runs if run.mode == "ar"), None)
    for run in runs:
        if name in (run.name, str(run.path), run.mode):
            return run
    raise SettingError(
        f"there is no run {name!r} to compare with; the runs are {', '.join(run.name for run in runs)}."
    )


def _tokens(record: dict[str, Any]) -> int:
    return len(record.get("generation_tokens", ()))


def _summed(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The statistics of all answers, added up; nested names with a dot. Empty where no answer has
    any.
    """
    total: dict[str, float] = {}

    def add(prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                add(f"{prefix}{name}.", value)
            elif isinstance(value, (int, float)):
                total[prefix + name] = total.get(prefix + name, 0.0) + value

    for record in records:
        add("", record.get("stats", {}))
    return total


def _over(total: dict[str, float], part: str, whole: str) -> float | None:
    return total[part] / total[whole] if total.get(whole) else None
