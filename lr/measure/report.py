"""The numbers of `lr report`: one row per run folder, compared with a baseline, as text,
Markdown and JSON, and the notes without which speedups mislead.

It reads what `lr run` writes and what the official tool writes. The latter has no
settings, grades or statistics, so its answers are graded here. Runs are compared only
if they answer the same questions with the same sampling; everything else is refused,
because a number that looks like a speedup will be read as one. Intervals are at 95 %.
The bootstrap draws problems, each with all its samples, because the samples of one
problem are not independent."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lr.errors import SettingError
from lr.measure.datasets import Item, Task
from lr.measure.grading import Grader
from lr.measure.store import AnswerKey, Store, differences
from lr.trace import Stats
from lr.types import require
from lr.watch.figures.plots import Bars

SAME = (
    "data seed temperature top_p top_k max_tokens_len max_tokens system enable_thinking"
).split()
"""Settings that compared runs must share; also the model, unless one run is the draft
alone."""
STATED = (
    "weights dtype device attention cuda_graphs threads tensor_parallel concurrency "
    "save_pairs lr"
).split()
"""Settings that are not the method: where two runs differ in them, a note says so. So
it does for the content of a file that both name."""
DRAWS = 2000  # of the bootstrap; seeds move an interval by about 1/20 of its width
COMPARED_COLUMNS = (
    "speedup",
    "speedup, 95 %",
    "middle half",
    "length",
    "lost",
    "won",
    "p",
)
Interval = tuple[float, float]
AnswerRecord = dict[str, Any]  # the content of a result's file


def accuracy(grades: Sequence[Sequence[bool]]) -> tuple[float, Interval]:
    """pass@1, the mean over problems of the mean over their samples, and its
    interval: Wilson's with one sample per problem, else a bootstrap."""
    from scipy.stats import binomtest

    means = np.array([fmean(map(float, samples)) for samples in grades])
    mean = float(means.mean())
    if any(len(samples) > 1 for samples in grades):
        return mean, _bootstrap(means, lambda drawn: drawn.mean(-1))
    interval = binomtest(round(means.sum()), len(means)).proportion_ci(method="wilson")
    return mean, (float(interval.low), float(interval.high))


def speedup_of(problems: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """The ratio of our tokens per second to the baseline's, over all problems.

    `problems`: (our tokens, our seconds, its tokens, its seconds) of each problem.
    Example: one problem, 10 tokens in 1 s against 10 in 2 s: 2.
    """

    def ratio(drawn: Any) -> Any:  # [..., problems, 4]
        tokens, seconds, base_tokens, base_seconds = np.moveaxis(drawn.sum(-2), -1, 0)
        return (tokens / seconds) / (base_tokens / base_seconds)

    numbers = np.array(problems, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(ratio(numbers))
        interval = _bootstrap(numbers, ratio)
    return (value if math.isfinite(value) else math.nan), interval


def _bootstrap(values: Any, statistic: Callable[[Any], Any]) -> Interval:
    """The percentile interval of a statistic; `values` [problems, ...]. No interval,
    (nan, nan), for one problem."""
    if len(values) < 2:
        return math.nan, math.nan
    picks = np.random.default_rng(0).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.percentile(statistic(values[picks]), (2.5, 97.5))
    return float(low), float(high)


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
        """As its answers say, since a variant may choose it; "?" for the official tool."""
        first = next(iter(self.records.values()))
        return str(first.get("mode", "?"))


def read_run(path: Path, grader: Grader) -> RunResults:
    """Read a run folder and grade answers without a grade. Raises `SettingError`."""
    if not path.is_dir():
        raise SettingError(f"{path} is no folder; give the folders of lr run.")
    store = Store(path)
    records = dict(store.results())
    if not records:
        raise SettingError(f"{path} has no results such as 0.json, 1.json.")
    for record in records.values():
        if "right" not in record:  # of the official tool: the text after the prompt
            prompt = record.get("target_prompt", "")
            text = record.get("full_text", "").removeprefix(prompt)
            text = record.get("generation_text", text)
            item = Item(0, "", Task.MATH, record.get("gold"))
            record |= asdict(grader.grade(item, text))
    head = store.settings() or {}
    machine = head.get("conditions", {})
    parts = (f"{n} {machine[n]}" for n in ("cpu", "card", "torch") if n in machine)
    devices = (*head.get("devices", ()), *parts)
    return RunResults(path, records, head.get("settings", {}), devices)


def choose_baseline(
    runs: Sequence[RunResults], name: str | None = None
) -> RunResults | None:
    """The run with that name, folder or mode; without a name, the first run in mode ar,
    if any."""
    for run in runs:
        if (name or "ar") == run.mode or name in (run.name, str(run.path)):
            return run
    names = ", ".join(run.name for run in runs)
    require(name is None, "baseline", name, f"a run or mode among {names}")
    return None


def require_comparable(run: RunResults, baseline: RunResults) -> None:
    """Raise `SettingError` if two runs differ in data or sampling."""
    ours, theirs = run.settings, baseline.settings
    if ours and theirs:
        alone = "draft" in (run.mode, baseline.mode)
        differ = differences(ours, theirs, SAME if alone else (*SAME, "model"))
    else:
        common = run.records.keys() & baseline.records.keys()
        same = all(
            run.records[key].get("question") == baseline.records[key].get("question")
            for key in common
        )
        differ = [] if same else ["their questions differ"]
    if differ:
        raise SettingError(
            f"{run.name} and {baseline.name} cannot be compared: {'; '.join(differ)}. "
            "Report them apart, or run one of them again."
        )


@dataclass(frozen=True)
class Summary:
    """One run in numbers: a table row of {head: value}, None where nothing was
    counted, and the facts without which the numbers mislead."""

    run: RunResults
    row: dict[str, Any]
    facts: list[str]
    stats: Stats


def summarise(run: RunResults, baseline: RunResults | None = None) -> Summary:
    """The summary of a run, compared with a baseline, if any. Raises as
    `require_comparable`."""
    from msgspec import convert

    records = list(run.records.values())
    tokens, seconds = map(sum, zip(*map(tokens_and_seconds, records), strict=True))
    speeds = [record["speed"] for record in records if record.get("speed")]
    counted = [record["stats"] for record in records if record.get("stats")]
    stats = sum((convert(counts, Stats) for counts in counted), Stats())
    wasted = sum(counts.get("wasted_target_tokens", 0) for counts in counted)
    grades: dict[int, list[bool]] = {}
    for key, record in run.records.items():
        if record.get("right") is not None:
            grades.setdefault(key.number, []).append(bool(record["right"]))
    right, interval = accuracy(list(grades.values())) if grades else (None, None)
    compared: dict[str, Any] = dict.fromkeys(COMPARED_COLUMNS)
    facts: list[str] = []
    if baseline is not None and baseline is not run:
        compared, facts = compare(run, baseline)
    row = {
        "run": run.name,
        "mode": run.mode,
        "answers": len(records),
        "right": right,
        "right, 95 %": interval,
        "tokens/s": tokens / seconds if seconds else None,
        "mean": fmean(speeds) if speeds else None,
        **compared,
        "steps kept": stats.step_acceptance,
        "tokens kept": stats.token_acceptance,
        "tokens/pass": stats.tokens_per_target_pass,
        "tokens": tokens,
        "wasted": wasted / stats.target_tokens if stats.target_tokens else None,
        "judge s": stats.verifier_seconds if counted else None,
        "judge passes": stats.verifier_passes if counted else None,
        "source s": stats.source_seconds or None,
    }
    unread = [r for r in records if r.get("right") is False and r.get("answer") is None]
    if unread:
        facts.append(f"no answer could be read in {len(unread)} of {len(records)}")
    unfinished = [record for record in records if record.get("finished") is False]
    if unfinished:
        facts.append(
            f"{len(unfinished)} answers were cut by the token budget or the target's context"
        )
    unjudged = Counter[str]()
    for record in records:
        unjudged.update(record.get("unjudged", {}))
    if unjudged:
        facts.append(
            f"{unjudged.total()} draft steps could not be judged and count as "
            f"rejected; most often: {unjudged.most_common(1)[0][0]}"
        )
    return Summary(run, row, facts, stats)


def compare(run: RunResults, baseline: RunResults) -> tuple[dict[str, Any], list[str]]:
    """What a run and a baseline give together: columns and facts. `p`: the two-sided
    p-value of the hypothesis that an answer is as often lost as won (the sign test)."""
    from scipy.stats import binomtest

    require_comparable(run, baseline)
    common = sorted(run.records.keys() & baseline.records.keys())
    if not common:
        raise SettingError(
            f"{run.name} and {baseline.name} have no answer (problem and sample) in "
            "common to compare."
        )
    pairs = [(run.records[key], baseline.records[key]) for key in common]
    # [answers, 4]: our tokens, our seconds, its tokens, its seconds
    sizes = np.array(
        [
            tokens_and_seconds(ours) + tokens_and_seconds(theirs)
            for ours, theirs in pairs
        ]
    )
    per_problem, per_sample = (
        [sizes[places == place].sum(0) for place in np.unique(places)]
        for places in np.array(common).T
    )
    speedup, interval = speedup_of(per_problem)
    tokens, _, base_tokens, _ = sizes.sum(0)
    length = float(tokens / base_tokens) if base_tokens else None
    each = [speedup_of([numbers])[0] for numbers in sizes]
    flips = [(ours.get("right"), theirs.get("right")) for ours, theirs in pairs]
    won, lost = flips.count((True, False)), flips.count((False, True))
    p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
    facts = []
    ours, theirs = run.settings, baseline.settings
    contents = [n for n in ours.keys() & theirs.keys() if n.startswith("content of")]
    differ = differences(ours, theirs, (*STATED, *sorted(contents)))
    if differ and ours and theirs:
        facts.append(
            f"it differs from the baseline in more than the method ({'; '.join(differ)})"
        )
    if len(common) < max(len(run.records), len(baseline.records)):
        facts.append(
            f"only {len(common)} answers are compared, of its {len(run.records)} and the "
            f"baseline's {len(baseline.records)}; right is over all of each"
        )
    if length is not None and abs(length - 1) > 0.05:
        word = "shorter" if length < 1 else "longer"
        facts.append(
            f"its answers are {word} than the baseline's ({length:.2f} times the "
            f"tokens); in time per problem it is {speedup / length:.2f} times as fast"
        )
    if won or lost:
        facts.append(
            f"{lost} answers right in the baseline are wrong here, {won} the other way "
            f"(p = {p:.2g})"
        )
    if len(per_sample) > 1 and ours.get("variant"):  # it may remember earlier samples
        samples = (cell(speedup_of([numbers])[0]) for numbers in per_sample)
        facts.append(f"speedup by sample: {', '.join(samples)}")
    middle: tuple[float, ...] | None = None
    if len(each) >= 4:
        middle = tuple(np.nanpercentile(each, (25, 75)).tolist())
    columns = (speedup, interval, middle, length, lost, won, p)
    return dict(zip(COMPARED_COLUMNS, columns, strict=True)), facts


def tokens_and_seconds(record: AnswerRecord) -> list[float]:
    """The tokens of an answer, and its seconds."""
    return [len(record.get("generation_tokens", ())), record.get("time_taken", 0.0)]


NUMBER_FORMATS = {"tokens/s": ".1f", "mean": ".1f", "wasted": ".0%", "p": ".2g"}
NUMBER_FORMATS |= dict.fromkeys(("right", "right, 95 %"), ".1%")
"""The number formats of columns; .2f for all others."""
LEGEND = (
    "right: pass@1, the mean over problems of the share of right samples. tokens/s: "
    "all tokens over all seconds; mean: over answers, as the official tool reports it. "
    "speedup: in tokens/s against the baseline, with a bootstrap interval over "
    "problems; middle half: its quartiles over answers. steps kept: accepted of the "
    "draft steps judged; tokens kept: of the draft tokens. length: tokens against the "
    "baseline's. wasted: of the target's finished steps, the share of tokens that is "
    "not in the answer. judge: seconds, and forwards or requests, of the verifier. "
    "source s: seconds of a variant's step source. "
    "lost, won: answers right only in the baseline, and only here; p: the sign test."
)


def cell(value: object, form: str = ".2f") -> str:
    """A value as text: "" for None and NaN, floats in format `form`, (1, 2) as "1 to
    2"."""
    if isinstance(value, tuple):
        ends = [cell(end, form) for end in value]
        return " to ".join(ends) if all(ends) else ""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, form) if isinstance(value, float) else str(value)


def texts(rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """Heads and cells of a table, without columns that are empty in every row."""
    heads = [h for h in rows[0] if any(cell(row[h]) for row in rows)]
    filled = (
        [cell(row[h], NUMBER_FORMATS.get(h, ".2f")) for h in heads] for row in rows
    )
    return [heads, *filled]


def bars(head: str, labels: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Bars:
    """One bar per row, with its interval if the table has one."""
    heights = [math.nan if row[head] is None else row[head] for row in rows]
    intervals = [row.get(f"{head}, 95 %") for row in rows]
    line = 1.0 if head == "speedup" else None
    return Bars(head, labels, heights, intervals, line=line)


def notes(summaries: Sequence[Summary]) -> list[str]:
    """What a reader of the numbers must know."""
    lines = []
    hardware = {s.run.devices for s in summaries if s.run.devices}
    if len(hardware) > 1:
        each = (f"{s.run.name}: {', '.join(s.run.devices)}" for s in summaries)
        lines.append(
            f"Not on equal hardware and software: {'; '.join(each)}. A speedup between "
            "them is not due to the method alone."
        )
    runs_with: dict[str, list[str]] = {}
    for summary in summaries:
        for fact in summary.facts:
            runs_with.setdefault(fact, []).append(summary.run.name)
    lines += [f"{', '.join(names)}: {fact}." for fact, names in runs_with.items()]
    if all(summary.row["speedup"] is None for summary in summaries):
        lines.append("No speedups: no run in mode ar (--baseline names another).")
    return lines


def markdown_table(rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; the first row is the head."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return ["| " + " | ".join(line) + " |" for line in lines]


def markdown(
    rows: Sequence[Mapping[str, object]], summaries: Sequence[Summary]
) -> list[str]:
    """The lines of a table and of its notes."""
    notes_of_all = [f"- {note}" for note in notes(summaries)]
    return [*markdown_table(texts(rows)), "", *notes_of_all, ""]
