"""The experiments: the paper's tables (arXiv 2506.19830), its checks, and questions
that it leaves open. docs/evaluation.md lists them.

An experiment names the ways to answer that are compared (`ways.py`), which `lab.py`
times, and the columns of its table."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError
from lr.measure import report
from lr.measure.lab import Lab, Row, WayResult
from lr.measure.store import Store
from lr.measure.ways import Way
from lr.theory.hybrid import hybrid_speedup
from lr.trace import Stats
from lr.types import require
from lr.watch.figures.plots import draw_panels

# The paper's Table 1: modes side by side.


# the official tool's four modes, with n-grams and with the draft, and two rows of Table 1
WAYS = (
    "ar",
    "sd drafter=ngram",
    "sd drafter=draft num_speculative_tokens=4",
    "sd drafter=draft num_speculative_tokens=8",
    "lr",
    "lr+sd drafter=ngram",
    "lr+sd drafter=draft",
    "draft",
)


def speedup_ways(lab: Lab) -> list[Way]:
    """The ways that were asked for, or else the paper's and SpecReason; then the
    variants."""
    ways = [Way.of(words) for words in lab.values or WAYS]
    variants = lab.variants if lab.values else ("specreason", *lab.variants)
    return ways + [Way({"way": n}, variant=n) for n in dict.fromkeys(variants)]


def ways_of(head: str, form: str, usual: Sequence[str], lab: Lab) -> list[Way]:
    """Plain decoding, then the way in words `form` with every value that was asked for,
    or else with the usual ones whose verifier is present. `head`: their column."""
    ways = [Way({head: "plain decoding"}, "ar")]
    for value in lab.values or usual:
        way = Way.of(form.format(mode=lab.mode, value=value))
        try:
            if way.verifier is not None:
                lab.models.verifier(way.verifier)
        except SettingError:
            if lab.values:
                raise
            continue
        ways.append(replace(way, cells={head: value}))
    return ways


# Table 2: verifiers.

VERIFIERS = (
    "oracle exact judge:0.5 judge:0.9 random:0.3 random:0.5 random:0.7 numbers "
    "likelihood likelihood:-3 score:7 always"
).split()


def verdict_cost(result: WayResult) -> Row:
    """What a verdict costs."""
    judged = result.summary.stats.judged
    seconds = result.summary.stats.verifier_seconds
    return {"ms per pair": 1000 * seconds / judged if judged else None}


# Table 3: does a wider tree pay? With the lab's verifier and the oracle, if any.

WIDTHS = "1", "2", "4", "8"
WIDTH_VALUES = (*WIDTHS, *(f"{width} verifier=oracle" for width in WIDTHS))


def places_kept(result: WayResult) -> Row:
    """The paper's acceptance rate: of the places where steps were judged, those at
    which one of the W alternatives was accepted."""
    origins = Counter(origin for origin, _ in result.steps)
    places = origins["accepted"] + origins["correction"]
    return {"places kept": origins["accepted"] / places if places else None}


# Section 3.3: how to split a small budget of positions per target pass.

BUDGETS = ("4", "8", "16", "32")


def budget_ways(lab: Lab) -> list[Way]:
    """Every split of a budget M in powers of two, and each factor alone: k1 target
    steps in flight (depth k1 - 1), k2 positions per step (k2 - 1 draft tokens)."""
    splits = {(1, 1)}
    for value in lab.values or BUDGETS:
        fits = value.isdecimal() and int(value) > 0
        require(fits, "values", value, "a whole number above 0")
        budget = int(value)
        for k1 in (2**i for i in range(budget.bit_length())):
            k2 = budget // k1
            splits |= {(k1, k2), (k1, 1), (1, k2)}
    ways = []
    for k1, k2 in sorted(splits):
        options: dict[str, Any] = {}
        if k1 > 1:
            options |= {"depth": k1 - 1, "max_target_rows": k1}
        if k2 > 1:
            options |= {"num_speculative_tokens": k2 - 1}
        modes = (("ar", "sd"), ("lr", "lr+sd"))
        mode = modes[k1 > 1][k2 > 1]
        ways.append(Way({"M": k1 * k2, "k1": k1, "k2": k2}, mode, options))
    return ways


def add_product_law(results: Sequence[WayResult], rows: Sequence[Row]) -> None:
    """By the product law steps and tokens together speed up by f(k1) g(k2), the product
    of what each gives alone. `f x g` is that product in tokens per target pass;
    `closed form` is h(k1, k2) of section 3.3 with the acceptance rates and the pass
    costs that were measured here."""
    passes = {(row["k1"], row["k2"]): row["tokens/pass"] or 1.0 for row in rows}
    total = sum((result.summary.stats for result in results), Stats())
    plain = results[0].summary.stats
    draft_pass = total.draft_seconds / max(1, total.draft_passes)
    target_pass = plain.target_seconds / max(1, plain.target_passes)
    cost = min(0.99, draft_pass / target_pass)
    by_model = results[0].summary.run.settings.get("drafter") == "draft"
    for row in rows:
        k1, k2 = row["k1"], row["k2"]
        row["f x g"] = passes[k1, 1] * passes[1, k2]
        row["closed form"] = hybrid_speedup(
            alpha1=total.step_acceptance or 0.0,
            alpha2=total.rounds.conditional_acceptance or 0.0,
            c1=cost,
            c2=cost if by_model else 0.0,
            k1=k1,
            k2=k2,
            schedule="async",
        )


# An open question: where should steps end?

SEGMENTERS = (
    "blank_line", "sentence", *(f"fixed segment_tokens={n}" for n in (8, 16, 32))
)  # fmt: skip


def step_sizes(result: WayResult) -> Row:
    """`cut`: the share of steps that ended at the length cap, where a judge made for
    whole steps sees pieces of them."""
    records, steps = result.summary.run.records.values(), result.steps
    return {
        "tokens/step": sum(n for _, n in steps) / len(steps),
        "steps per answer": len(steps) / len(records),
        "cut": sum(record["cut_steps"] for record in records) / len(steps),
    }


# A check: do draft and target overlap?


def time_shares(result: WayResult) -> Row:
    """The shares of the time in which each model was at work. What they are above 1 in
    all is `overlap`: at least in this share of the time two worked at once."""
    stats = result.summary.stats
    shares = {
        "target": stats.target_seconds / stats.seconds,
        "draft": (stats.draft_seconds + stats.source_seconds) / stats.seconds,
        "judge": stats.verifier_seconds / stats.seconds,
    }
    return shares | {"overlap": max(0.0, sum(shares.values()) - 1)}


HEADS = (
    "right",
    "right, 95 %",
    "tokens/s",
    "speedup",
    "speedup, 95 %",
    "middle half",
    "tokens/pass",
    "steps kept",
    "tokens kept",
    "length",
    "wasted",
    "lost",
    "won",
    "p",
)
"""The columns of `lr report` in the table of an experiment."""
TIMES = ("tokens/s", "speedup", "speedup, 95 %", "middle half")  # those of speed


@dataclass(frozen=True)
class Experiment:
    """`problems`: the default number of tiny problems. `drawn`: the columns that the
    figure shows as bars. `extra`: columns of its own. `timed`: whether it measures
    speed, so problems are answered one at a time."""

    title: str
    problems: int
    ways: Callable[[Lab], list[Way]]
    drawn: tuple[str, ...]
    extra: Callable[[WayResult], Row] = lambda result: {}
    timed: bool = True

    def rows(self, results: Sequence[WayResult]) -> list[Row]:
        heads = [head for head in HEADS if self.timed or head not in TIMES]
        rows = [
            {
                **result.way.cells,
                **self.extra(result),
                **{head: result.summary.row[head] for head in heads},
            }
            for result in results
        ]
        if self.ways is budget_ways:
            add_product_law(results, rows)
        return rows


EXPERIMENTS = {
    "speedup": Experiment(
        "Modes side by side",
        problems=60,
        ways=speedup_ways,
        drawn=("right", "speedup"),
    ),
    "verifiers": Experiment(
        "Verifiers: what is accepted, and what it costs",
        problems=300,
        ways=partial(ways_of, "verifier", "{mode} verifier={value}", VERIFIERS),
        drawn=("steps kept", "right"),
        extra=verdict_cost,
        timed=False,
    ),
    "width": Experiment(
        "Width at depth 2",
        problems=24,
        ways=partial(ways_of, "W", "{mode} depth=2 width={value}", WIDTH_VALUES),
        drawn=("places kept", "speedup"),
        extra=places_kept,
    ),
    "profile": Experiment(
        "Where the time goes",
        problems=12,
        ways=partial(
            ways_of, "driver", "lr driver={value}", ("lockstep", "overlapped")
        ),
        drawn=("target", "overlap"),
        extra=time_shares,
    ),
    "budget": Experiment(
        "A budget of M positions per target pass",
        problems=16,
        ways=budget_ways,
        drawn=("tokens/pass", "speedup"),
    ),
    "segmentation": Experiment(
        "Where steps end",
        problems=24,
        ways=partial(ways_of, "steps end at", "{mode} segmenter={value}", SEGMENTERS),
        drawn=("steps kept", "speedup"),
        extra=step_sizes,
    ),
}


def write_results(
    name: str,
    results: Sequence[WayResult],
    folder: Path,
    command: str,
    conditions: Mapping[str, Any],
) -> list[Path]:
    """Write NAME.md, NAME.json and, with matplotlib, NAME.png and NAME.svg; return the
    paths."""
    experiment = EXPERIMENTS[name]
    rows = experiment.rows(results)
    numbers = {key.number for result in results for key in result.summary.run.records}
    title = f"{experiment.title}, {len(numbers)} problems"
    store = Store(folder)
    facts = ", ".join(f"{key} {value}" for key, value in conditions.items())
    lines = [f"# {title}", "", "```", command, "```", ""]
    lines += report.markdown(rows, [result.summary for result in results])
    lines.append(f"Conditions: {facts}.")
    store.write_lines(f"{name}.md", lines)
    content = {
        "title": title,
        "command": command,
        "conditions": conditions,
        "rows": rows,
    }
    store.write(f"{name}.json", content)
    figures = []
    if find_spec("matplotlib"):
        labels = [" ".join(map(report.cell, r.way.cells.values())) for r in results]
        panels = [report.bars(head, labels, rows) for head in experiment.drawn]
        figures = draw_panels(panels, folder / name, title)
    return [folder / f"{name}.md", folder / f"{name}.json", *figures]
