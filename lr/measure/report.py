"""The numbers of `lr report`: one row per run directory, with speedups against a
baseline, as text cells, Markdown and JSON, and the notes without which speedups
mislead.

It reads what `lr run` writes and what the official tool writes. The latter has no
settings, grades or statistics, so its answers are graded here. Runs are compared only
if they answer the same questions with the same sampling; everything else is refused,
because a number that looks like a speedup will be read as one. Intervals are at 95 %.
The bootstrap draws problems, each with all its samples, because the samples of one
problem are not independent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from lr.errors import SettingError
from lr.measure.datasets import Item, Task
from lr.measure.grading import Grader
from lr.measure.store import AnswerKey, Store
from lr.trace import Stats
from lr.watch.figures.plots import Bars

SAME = (
    "data",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens_len",
    "model",
)
"""Settings that compared runs must share; the model may differ if one run is the draft
alone."""
DRAWS = 2000  # Bootstrap draws; seeds move the ends of an interval by about 1/20 of its width.
Interval = tuple[float, float]
AnswerRecord = dict[str, Any]  # The content of a result's file.


def accuracy(grades: Sequence[Sequence[bool]]) -> tuple[float, Interval]:
    """pass@1, the mean over problems of the mean over their samples, with its
    interval."""
    from scipy.stats import binomtest

    means = [fmean(map(float, samples)) for samples in grades]
    if any(len(samples) > 1 for samples in grades):
        return fmean(means), _bootstrap([means], np.mean)
    known = binomtest(round(sum(means)), len(means)).proportion_ci(method="wilson")
    return fmean(means), (float(known.low), float(known.high))


def speedup_of(pairs: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """The ratio of our tokens per second to the baseline's, over all problems, with its
    interval.

    `pairs`: (our tokens, our seconds, its tokens, its seconds) of each problem.
    Example: one problem, 10 tokens in 1 s against 10 in 2 s: 2."""

    def ratio(*columns: Any, axis: int = -1) -> Any:
        tokens, seconds, base_tokens, base_seconds = (
            np.sum(one, axis) for one in columns
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return (tokens / seconds) / (base_tokens / base_seconds)

    columns = np.array(pairs, dtype=float).T
    value = float(ratio(*columns))
    return (value if math.isfinite(value) else math.nan), _bootstrap(columns, ratio)


def _bootstrap(columns: Any, statistic: Any) -> Interval:
    """The percentile interval of a statistic of paired columns; (nan, nan) for one
    problem."""
    from scipy.stats import bootstrap

    if len(columns[0]) < 2:
        return math.nan, math.nan
    found = bootstrap(
        columns, statistic, paired=True, vectorized=True, n_resamples=DRAWS, batch=100,
        method="percentile", random_state=0,
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class RunResults:
    """A run read from disk. `settings` is empty for a run of the official tool."""

    path: Path
    records: dict[AnswerKey, AnswerRecord]
    settings: dict[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def mode(self) -> str:
        return str(self.settings.get("mode", "?"))


def read_run(path: Path, grader: Grader) -> RunResults:
    """Read a run directory and grade answers without a grade. Raises `SettingError`."""
    if not path.is_dir():
        raise SettingError(
            f"{path} is not a directory; give the folders that lr run has written."
        )
    store = Store(path)
    records = dict(store.results())
    if not records:
        inside = ", ".join(sorted(one.name for one in path.iterdir())[:5]) or "nothing"
        raise SettingError(
            f"{path} has {inside}, and no results such as 0.json, 1.json."
        )
    head = store.settings() or {}
    for record in records.values():
        if "right" in record:
            continue
        # from the official tool: compare its gold answer with the text after the prompt
        text, gold = record.get("generation_text"), record.get("gold")
        if text is None:
            text = record.get("full_text", "").removeprefix(
                record.get("target_prompt", "")
            )
        task = Task.FREE if gold is None else Task.MATH
        item = Item(0, "", task, None if gold is None else str(gold))
        record |= asdict(grader.grade(item, text))
    return RunResults(
        path, records, head.get("settings", {}), tuple(head.get("devices", ()))
    )


def choose_baseline(
    runs: Sequence[RunResults], name: str | None = None
) -> RunResults | None:
    """The run with that name, folder or mode; without a name, the first run in mode ar,
    if any."""
    if name is None:
        return next((run for run in runs if run.mode == "ar"), None)
    for run in runs:
        if name in (run.name, str(run.path), run.mode):
            return run
    there = ", ".join(run.name for run in runs)
    raise SettingError(
        f"there is no run {name!r} to compare with; the runs are {there}."
    )


def require_comparable(run: RunResults, baseline: RunResults) -> None:
    """Raise `SettingError` if two runs differ in data or sampling."""
    mine, theirs = run.settings, baseline.settings
    if mine and theirs:
        differ = [name for name in SAME if mine.get(name) != theirs.get(name)]
        if "draft" in (run.mode, baseline.mode) and "model" in differ:
            differ.remove("model")
    else:
        asked = (
            (run.records[key].get("question"), baseline.records[key].get("question"))
            for key in run.records.keys() & baseline.records.keys()
        )
        differ = ["questions"] if any(ours != other for ours, other in asked) else []
    if differ:
        values = (
            f"{name}: {mine.get(name)!r} and {theirs.get(name)!r}" for name in differ
        )
        raise SettingError(
            f"{run.name} and {baseline.name} cannot be compared: they differ in "
            f"{', '.join(values)}. Report them apart, or run one of them again."
        )


def column(head: str, form: str = "", **how: Any) -> Any:
    """A field that tables show under `head`, its numbers in format `form`."""
    return field(metadata={"head": head, "form": form}, **how)


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One run in numbers; None where nothing was counted. Speeds are in tokens per
    second, times in seconds.

    `speed` is all tokens over all seconds. `mean_speed` and `median_speed` are over
    answers, as the official tool reports them, where short answers weigh as much as
    long ones. `length_ratio`: tokens over the baseline's; shorter answers look
    faster."""

    name: str = column("run")
    mode: str = column("mode")
    answers: int = column("answers")
    problems: int
    accuracy: float | None = column("right", ".1%")
    accuracy_interval: tuple[float, float] | None = column("95 %", ".1%")
    unread: int
    unfinished: int
    seconds: float
    devices: tuple[str, ...]
    speed: float | None = column("tokens/s", ".1f")
    mean_speed: float | None = column("mean", ".1f")
    median_speed: float | None = column("median", ".1f")
    speedup: float | None = column("speedup", ".2f", default=None)
    speedup_interval: tuple[float, float] | None = column("95 %", ".2f", default=None)
    step_acceptance: float | None = column("steps kept", ".2f")
    token_acceptance: float | None = column("tokens kept", ".2f")
    tokens: int = column("tokens")
    length_ratio: float | None = column("length", ".2f", default=None)
    wasted_share: float | None = column("wasted", ".0%")
    target_passes: int | None = column("target passes")
    tokens_per_pass: float | None = column("tokens/pass", ".2f")
    judge: str | None = column("judge s / passes")
    judge_seconds: float | None
    verifier_passes: int | None
    unjudged: Mapping[str, int]
    time_ratio: float | None = None
    flips: tuple[int, int] | None = None
    flip_p: float | None = None


def make_row(run: RunResults, baseline: RunResults | None = None) -> ReportRow:
    """The row of a run, compared with a baseline, if any. Raises as
    `require_comparable`."""
    records = list(run.records.values())
    grades: dict[int, list[bool]] = {}
    for key, record in run.records.items():
        if record.get("right") is not None:
            grades.setdefault(key.number, []).append(bool(record["right"]))
    known, interval = accuracy(list(grades.values())) if grades else (None, None)
    tokens, seconds = (
        sum(map(_tokens, records)),
        sum(one.get("time_taken", 0.0) for one in records),
    )
    speeds = [record["speed"] for record in records if record.get("speed")]
    from msgspec import convert  # the GPU checks print tables without msgspec

    counted = [record["stats"] for record in records if record.get("stats")]
    total = sum((convert(one, Stats) for one in counted), Stats())
    wasted = sum(one.get("wasted_target_tokens", 0) for one in counted)
    return ReportRow(
        name=run.name,
        mode=run.mode,
        answers=len(records),
        problems=len({key.number for key in run.records}),
        accuracy=known,
        accuracy_interval=interval,
        unread=sum(
            one.get("right") is False and one.get("answer") is None for one in records
        ),
        unfinished=sum(one.get("finished") is False for one in records),
        tokens=tokens,
        seconds=seconds,
        speed=tokens / seconds if seconds else None,
        mean_speed=fmean(speeds) if speeds else None,
        median_speed=median(speeds) if speeds else None,
        step_acceptance=total.step_acceptance,
        token_acceptance=total.token_acceptance,
        wasted_share=wasted / total.target_tokens if total.target_tokens else None,
        target_passes=total.target_passes if counted else None,
        tokens_per_pass=total.tokens_per_target_pass,
        judge_seconds=total.verifier_seconds if counted else None,
        verifier_passes=total.verifier_passes if counted else None,
        judge=f"{total.verifier_seconds:.2f} / {total.verifier_passes}"
        if counted
        else None,
        unjudged=dict(
            sum((Counter(one.get("unjudged", {})) for one in records), Counter())
        ),
        devices=run.devices,
        **({} if baseline is None or baseline is run else _compared(run, baseline)),
    )


def _compared(run: RunResults, baseline: RunResults) -> dict[str, Any]:
    """The fields of `ReportRow` that need a baseline. `flip_p`: the two-sided p-value
    of the hypothesis that both kinds of flips are equally likely (McNemar's exact
    test)."""
    from scipy.stats import binomtest

    require_comparable(run, baseline)
    sums: dict[int, Any] = {}
    flips = Counter[tuple[bool | None, bool | None]]()
    for key in sorted(run.records.keys() & baseline.records.keys()):
        mine, theirs = run.records[key], baseline.records[key]
        numbers = [
            _tokens(mine),
            mine["time_taken"],
            _tokens(theirs),
            theirs["time_taken"],
        ]
        sums[key.number] = sums.get(key.number, 0) + np.array(numbers, dtype=float)
        flips[mine.get("right"), theirs.get("right")] += 1
    if not sums:
        both = f"{run.name} and {baseline.name}"
        raise SettingError(
            f"{both} have no answer (problem and sample) in common to compare."
        )
    tokens, seconds, base_tokens, base_seconds = sum(sums.values()).tolist()
    speedup, interval = speedup_of(list(sums.values()))
    better, worse = flips[True, False], flips[False, True]
    return {
        "speedup": speedup,
        "speedup_interval": interval,
        "time_ratio": base_seconds / seconds if seconds else None,
        "length_ratio": tokens / base_tokens if base_tokens else None,
        "flips": (better, worse),
        "flip_p": float(binomtest(better, better + worse).pvalue)
        if better + worse
        else 1.0,
    }


def _tokens(record: AnswerRecord) -> int:
    return len(record.get("generation_tokens", ()))


COLUMNS = [one for one in fields(ReportRow) if one.metadata]
HEADS = tuple(one.metadata["head"] for one in COLUMNS)
ACCURACY = {"right": "accuracy", "right, 95 %": "accuracy_interval"}
SPEEDUP = {"speedup": "speedup", "speedup, 95 %": "speedup_interval"}
PASSES = {"tokens/pass": "tokens_per_pass"}
KEPT = {"steps kept": "step_acceptance", "tokens kept": "token_acceptance"}
LEGEND = (
    "right: pass@1, the mean over problems of the share of right samples. tokens/s: all tokens "
    "over all seconds; mean, median: over answers. speedup: in tokens/s against the baseline, "
    "paired by problem, with a bootstrap interval over problems. steps kept: accepted of the draft "
    "steps judged; tokens kept: of the draft tokens. length: tokens against the baseline's on "
    "the same problems. wasted: of the target's finished steps, the share of tokens that is not in "
    "the answer. judge: seconds, and forwards or requests, of the verifier."
)


def cell(value: object, form: str = ".2f") -> str:
    """A value as text: "" for None and NaN, floats in format `form`, (1, 2) as "1 to
    2"."""
    if isinstance(value, tuple):
        ends = [cell(one, form) for one in value]
        return " to ".join(ends) if all(ends) else ""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, form) if isinstance(value, float) else str(value)


def cells(row: ReportRow) -> tuple[str, ...]:
    """One row of the table with the columns `HEADS`."""
    return tuple(cell(getattr(row, one.name), one.metadata["form"]) for one in COLUMNS)


def pick(row: ReportRow, columns: Mapping[str, str]) -> dict[str, object]:
    """Some columns of a row. `columns` maps heads to fields of `ReportRow`."""
    return {head: getattr(row, name) for head, name in columns.items()}


def bars(
    title: str, names: Sequence[str], rows: Sequence[ReportRow], field: str, **how: Any
) -> Bars:
    """One bar per row, with its interval if the field has one."""
    values = [
        math.nan if (value := getattr(row, field)) is None else value for row in rows
    ]
    intervals = [getattr(row, f"{field}_interval", None) for row in rows]
    return Bars(title, names, values, intervals, **how)


def notes(rows: Sequence[ReportRow]) -> list[str]:
    """What a reader of the numbers must know."""
    said, hardware = [], {row.devices for row in rows if row.devices}
    if len(hardware) > 1:
        each = [
            f"{r.name}: {len(r.devices)} ({', '.join(r.devices)})"
            for r in rows
            if r.devices
        ]
        said.append(
            f"Not on equal hardware: {'; '.join(each)}. A speedup with more devices is not due to "
            "the method alone."
        )
    elif hardware:
        said.append(f"All on the same devices: {', '.join(next(iter(hardware)))}.")
    for row in rows:
        head, many = f"{row.name}: ", f"of {row.answers}"
        if row.length_ratio is not None and abs(row.length_ratio - 1) > 0.05:
            word = "shorter" if row.length_ratio < 1 else "longer"
            said.append(
                f"{head}its answers are {word} than the baseline's ({row.length_ratio:.2f} times "
                "the tokens); in time per problem it is "
                f"{row.time_ratio or math.nan:.2f} times as fast."
            )
        better, worse = row.flips or (0, 0)
        if better or worse:
            said.append(
                f"{head}{worse} answers right in the baseline are wrong here, {better} the other "
                f"way (p = {row.flip_p:.2g})."
            )
        if row.unread:
            said.append(
                f"{head}no answer could be read in {row.unread} {many}: counted as wrong."
            )
        if row.unfinished:
            said.append(
                f"{head}{row.unfinished} {many} answers were cut by the token budget."
            )
        if row.unjudged:
            why, count = max(row.unjudged.items(), key=itemgetter(1))
            said.append(
                f"{head}{sum(row.unjudged.values())} draft steps could not be judged and count as "
                f"rejected; {count} times: {why}"
            )
    if rows and all(row.speedup is None for row in rows):
        said.append(
            "No speedups: no run in mode ar was given (--baseline names another)."
        )
    return said


def table(rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [
        lines[0],
        "| " + " | ".join(["---"] * (lines[0].count(" | ") + 1)) + " |",
        *lines[1:],
    ]


def markdown(rows: Sequence[ReportRow]) -> str:
    """The table, its notes and its legend as Markdown."""
    lines = [
        *table([HEADS, *map(cells, rows)]),
        "",
        *(f"- {note}" for note in notes(rows)),
    ]
    return "\n".join([*lines, "", LEGEND, ""])


def document(rows: Sequence[ReportRow]) -> dict[str, Any]:
    """The rows and notes for a JSON file."""
    return {"rows": plain(rows), "notes": notes(rows)}


def plain(value: object) -> Any:
    """A value as JSON has it: tuples become lists, NaN becomes null."""
    from msgspec import json  # the GPU checks print tables without msgspec

    return json.decode(json.encode(value))
