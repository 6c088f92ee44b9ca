"""The experiments: the paper's tables (arXiv 2506.19830), its checks, and questions
that it leaves open. docs/evaluation.md lists them.

An *arm* is one way of answering. A `Lab` answers every problem in every arm; the arms
alternate, so a change in the machine's speed affects all of them. Each arm writes a run
folder like that of `lr run`, and resumes where it stopped. An experiment names its
arms and the columns of its table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Any

from lr.engine.verifiers import VerifierChoice, asked_model
from lr.errors import SettingError
from lr.measure import report
from lr.measure.bench.report import BenchWay
from lr.measure.datasets import Item
from lr.measure.grading import Grader
from lr.measure.report import Summary
from lr.measure.running import Evaluation, engine_options, identified, run_head
from lr.measure.store import Store
from lr.measure.verifier_eval import SheetTexts, read_logprobs
from lr.options import GenerateOptions, Mode, make_options
from lr.reasoner import Reasoner
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.fitted import SCORES, SIGNALS
from lr.theory.hybrid import hybrid_speedup
from lr.tiny.names import speaks_tiny
from lr.trace import Stats
from lr.types import require
from lr.variants.loading import load_variant
from lr.watch.figures.plots import draw

Row = dict[str, Any]
ASK_NO_MODEL = ("exact", "likelihood", "numbers", "fitted")


@dataclass(frozen=True)
class Arm:
    """One way of answering: `options` override the lab's. `cells`: table cells that
    identify the arm. `verifier` None: the lab's own."""

    cells: Mapping[str, Any]
    mode: str = "lr"
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    variant: str | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        words = " ".join(map(str, self.cells.values()))
        return re.sub(r"[^\w.=+,-]+", "_", words).strip("_")


@dataclass(frozen=True)
class ArmResult:
    """The answers of an arm, compared with plain decoding."""

    arm: Arm
    lab: Lab
    summary: Summary

    @property
    def steps(self) -> list[tuple[str, int]]:
        """(origin, tokens) of every step."""
        return [
            (origin, tokens)
            for record in self.summary.run.records.values()
            for origin, tokens in record.get("steps", [])
        ]


@dataclass
class Lab:
    """Runs arms on problems. `load(True)` gives the draft alone. `values`: what the
    experiment varies, as flags gave it. `concurrency`: problems answered together.
    `repeats`: answers per problem, with other draws. `data`: the fingerprint of the data
    set that `items` are from. `head`: facts for run.json."""

    items: Sequence[Item]
    work: Path
    load: Callable[[bool], Reasoner]
    options: GenerateOptions = field(default_factory=GenerateOptions)
    values: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    judge: str | None = None
    concurrency: int = 1
    repeats: int = 1
    data: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)
    _reasoners: dict[bool, Reasoner] = field(default_factory=dict, init=False)
    _verifiers: dict[str, Verifier] = field(default_factory=dict, init=False)

    @property
    def mode(self) -> Mode:
        """How arms answer that say nothing else."""
        return self.options.mode or "lr"

    def reasoner(self, *, draft_alone: bool = False) -> Reasoner:
        if draft_alone not in self._reasoners:
            self._reasoners[draft_alone] = self.load(draft_alone)
        return self._reasoners[draft_alone]

    def verifier_named(self, name: str, texts: SheetTexts | None = None) -> Verifier:
        """A verifier by name, loaded once; judge@PATH and embedding:0.95@PATH name its
        checkpoint. With the `texts` of a sheet, one that asks no model loads none.
        Raises `SettingError` if a checkpoint is missing."""
        if texts is not None and name.partition(":")[0] in ASK_NO_MODEL:
            choice = VerifierChoice(name, texts)  # type: ignore[arg-type]
            if not choice.asks_model:
                return choice.build(None)
        if name not in self._verifiers:
            kind, _, checkpoint = name.partition("@")
            if not checkpoint and kind.startswith("judge"):
                checkpoint = self.judge or ""
            reasoner = self.reasoner()
            target = reasoner.engine.target
            choice = VerifierChoice(
                kind,
                reasoner.codec,
                checkpoint or None,
                target.device,
                reasoner.engine.loader,
            )
            self._verifiers[name] = choice.build(target)
        return self._verifiers[name]

    def scorers(self, signals: Sequence[str]) -> dict[str, Verifier]:
        """The verifiers whose scores are signals. Raises `SettingError` for a signal
        that does not exist."""
        known = (*SIGNALS, *SCORES)
        for name in signals:
            require(name in known, "signals", name, f"one of {', '.join(known)}")
        return {name: self.verifier_named(name) for name in signals if name in SCORES}

    def require_vocabulary(self, pairs: Sequence[Pair]) -> None:
        """Raise `SettingError` if the model, if one was loaded, cannot have written the
        pairs."""
        if not self._reasoners:
            return
        codec = self.reasoner().codec
        largest = max(max((*pair.prefix, *pair.draft.tokens)) for pair in pairs)
        wrote = f"the target that wrote these pairs: they have token {largest}"
        require(largest < codec.vocab_size, "model", codec.name, wrote)

    def with_logprobs(self, pairs: Sequence[Pair], requires: Requires) -> list[Pair]:
        """The pairs, read by target and draft where a required log-probability is
        missing. Raises `SettingError` if the models are not those of the pairs."""
        read = list(pairs)
        asked = {
            "logprobs": (Requires.TARGET_LOGPROBS, "target"),
            "draft_logprobs": (Requires.DRAFT_LOGPROBS, "draft"),
        }
        for name, (need, role) in asked.items():
            missing = [n for n, pair in enumerate(read) if not getattr(pair, name)]
            if need not in requires or not missing:
                continue
            reasoner = self.reasoner()
            model = getattr(reasoner.engine, role)
            lacks = f"--{'draft_' * (role == 'draft')}model: the pairs hold no log-"
            require(model is not None, role, None, f"{lacks}probabilities of it")
            bare = [read[number] for number in missing]
            self.require_vocabulary(bare)
            runner = asked_model(model, reasoner.codec).runner
            logs = read_logprobs(runner, bare)
            for number, logprobs in zip(missing, logs, strict=True):
                changed: dict[str, Any] = {name: logprobs}
                read[number] = replace(read[number], **changed)
        return read

    @property
    def is_tiny(self) -> bool:
        """Whether the models speak the tiny language, which has an oracle."""
        return speaks_tiny(self.reasoner().codec)

    def run(
        self, arms: Sequence[Arm], progress: Callable[[str], None] = lambda name: None
    ) -> list[ArmResult]:
        """Answer every problem in every arm, one after the other, and compare."""
        turn = 2 * self.concurrency if self.concurrency > 1 else 1
        firsts = range(0, len(self.items), turn)
        warm = set[str]()
        with Grader() as grader:
            stores = [Store.open(self.work / arm.name, self._head(arm)) for arm in arms]
            for repeat, first in product(range(self.repeats), firsts):
                items = self.items[first : first + turn]
                for arm, store in zip(arms, stores, strict=True):
                    evaluation = self._evaluation(arm, items, repeat, store, grader)
                    evaluation.warm_up = arm.name not in warm
                    num_done = len(evaluation.keys) - len(evaluation.missing)
                    for _ in chain(range(num_done), evaluation.run()):
                        progress(arm.name)
                    if evaluation.missing:
                        warm.add(arm.name)
            runs = [report.read_run(store.path, grader) for store in stores]
        numbers = {item.number for item in self.items}
        for run in runs:  # another --problems may have left more
            for key in [key for key in run.records if key.number not in numbers]:
                del run.records[key]
        baseline = report.choose_baseline(runs)
        return [
            ArmResult(arm, self, report.summarise(run, baseline))
            for arm, run in zip(arms, runs, strict=True)
        ]

    def close(self) -> None:
        for reasoner in self._reasoners.values():
            reasoner.close()

    def _evaluation(
        self, arm: Arm, items: Sequence[Item], repeat: int, store: Store, grader: Grader
    ) -> Evaluation:
        options = engine_options(
            arm.mode, "generate", replace(self.options, **arm.options)
        )
        reasoner = self.reasoner(draft_alone=arm.mode == "draft")
        variant = None
        if arm.variant is not None:
            variant = load_variant(arm.variant, reasoner)
            mode = variant.settings.get("mode", options.mode)
            options = replace(options, mode=mode)
        if arm.verifier is not None:
            variant = Variant(verifier=self.verifier_named(arm.verifier))
        return Evaluation(
            reasoner,
            store,
            grader,
            items,
            arm.mode,
            options,
            samples=(repeat,),
            concurrency=self.concurrency,
            variant=variant,
        )

    def _head(self, arm: Arm) -> Row:
        """The content of the arm's run.json."""
        settings = asdict(replace(self.options, **arm.options)) | {
            **self.head,
            "data": self.data,
            "mode": arm.mode if arm.variant is None else arm.name,
            "variant": arm.variant,
            "concurrency": self.concurrency,
            "branching": list(self.options.branching),
        }
        if arm.verifier is not None:
            settings["verifier"] = arm.verifier
        device = self.reasoner().engine.target.device
        return run_head("lr experiment", identified(settings), [str(device)])


# The paper's Table 1: modes side by side.


def arm_from(way: str) -> Arm:
    """An arm from words: a mode, then settings that differ from the lab's, also a
    verifier, as in "lr depth=2 verifier=likelihood:-1"."""
    chosen = BenchWay.of(way)
    options = chosen.settings
    verifier = options.pop("verifier", None)
    engine_options(chosen.mode, "generate", make_options(**options))  # or refuses it
    return Arm({"way": way}, chosen.mode, options, verifier)


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


def speedup_arms(lab: Lab) -> list[Arm]:
    """The ways that were asked for, or else the paper's and SpecReason; then the
    variants."""
    ways = [arm_from(way) for way in lab.values or WAYS]
    variants = lab.variants if lab.values else ("specreason", *lab.variants)
    return ways + [Arm({"way": n}, variant=n) for n in dict.fromkeys(variants)]


# Table 2: verifiers.

VERIFIERS = (
    "oracle exact judge:0.5 judge:0.9 random:0.3 random:0.5 random:0.7 numbers "
    "likelihood likelihood:-3 score:7 always"
).split()


def verifier_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then the verifiers that were asked for, or else every one whose
    checkpoint is present."""
    arms = [Arm({"verifier": "plain decoding"}, "ar")]
    for name in lab.values or VERIFIERS:
        try:
            lab.verifier_named(name)
        except SettingError:
            if lab.values:
                raise
            continue
        cells = {"verifier": name}
        arms.append(Arm(cells, lab.mode, verifier=name))
    return arms


def verdict_cost(result: ArmResult) -> Row:
    """What a verdict costs."""
    judged = result.summary.stats.judged
    seconds = result.summary.stats.verifier_seconds
    return {"ms per pair": 1000 * seconds / judged if judged else None}


def whole_numbers(values: Sequence[str]) -> list[int]:
    """The values of an experiment that varies a number."""
    fits = all(value.isdecimal() and int(value) > 0 for value in values)
    require(fits, "values", values, "whole numbers above 0")
    return [int(value) for value in values]


# Table 3: does a wider tree pay?

WIDTHS = ("1", "2", "4", "8")


def width_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every width at depth 2, with the lab's verifier and the
    oracle, if any."""
    arms = [Arm({"verifier": "plain decoding", "W": None}, "ar")]
    for verifier in (None, "oracle") if lab.is_tiny else (None,):
        for width in whole_numbers(lab.values or WIDTHS):
            cells = {"verifier": verifier or "as given", "W": width}
            options = {"depth": 2, "width": width}
            arms.append(Arm(cells, lab.mode, options, verifier))
    return arms


def places_kept(result: ArmResult) -> Row:
    """The paper's acceptance rate: of the places where steps were judged, those at
    which one of the W alternatives was accepted."""
    origins = Counter(origin for origin, _ in result.steps)
    places = origins["accepted"] + origins["correction"]
    return {"places kept": origins["accepted"] / places if places else None}


# Section 3.3: how to split a small budget of positions per target pass.

BUDGETS = ("4", "8", "16", "32")


def budget_arms(lab: Lab) -> list[Arm]:
    """Every split of a budget M in powers of two, and each factor alone: k1 target
    steps in flight (depth k1 - 1), k2 positions per step (k2 - 1 draft tokens)."""
    splits = {(1, 1)}
    for budget in whole_numbers(lab.values or BUDGETS):
        for k1 in (2**i for i in range(budget.bit_length())):
            k2 = budget // k1
            splits |= {(k1, k2), (k1, 1), (1, k2)}
    arms = []
    for k1, k2 in sorted(splits):
        options: dict[str, Any] = {}
        if k1 > 1:
            options |= {"depth": k1 - 1, "max_target_rows": k1}
        if k2 > 1:
            options |= {"num_speculative_tokens": k2 - 1}
        modes = (("ar", "sd"), ("lr", "lr+sd"))
        mode = modes[k1 > 1][k2 > 1]
        arms.append(Arm({"M": k1 * k2, "k1": k1, "k2": k2}, mode, options))
    return arms


def add_product_law(results: Sequence[ArmResult], rows: Sequence[Row]) -> None:
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
    by_model = results[0].lab.options.drafter == "draft"
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

SEGMENTERS: dict[str, dict[str, Any]] = {
    "blank line": {"segmenter": "blank_line"},
    "sentence": {"segmenter": "sentence"},
    **{f"fixed {n}": {"segmenter": "fixed", "segment_tokens": n} for n in (8, 16, 32)},
}


def segmentation_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then every segmenter."""
    plain = Arm({"steps end at": "plain decoding"}, "ar")
    ways = SEGMENTERS.items()
    return [
        plain,
        *(Arm({"steps end at": n}, lab.mode, options) for n, options in ways),
    ]


def step_sizes(result: ArmResult) -> Row:
    """`cut`: the share of steps that ended at the length cap, where a judge made for
    whole steps sees pieces of them."""
    records, steps = result.summary.run.records.values(), result.steps
    return {
        "tokens/step": sum(n for _, n in steps) / len(steps),
        "steps per answer": len(steps) / len(records),
        "cut": sum(record["cut_steps"] for record in records) / len(steps),
    }


# A check: do draft and target overlap?


def profile_arms(lab: Lab) -> list[Arm]:
    """Plain decoding, then Lookahead Reasoning with each driver."""
    return [
        Arm({"driver": "plain decoding"}, "ar"),
        Arm({"driver": "lockstep"}, "lr", {"driver": "lockstep"}),
        Arm({"driver": "overlapped"}, "lr", {"driver": "overlapped"}),
    ]


def time_shares(result: ArmResult) -> Row:
    """The shares of the time in which each model was at work. What they are above 1 in
    all is `overlap`: at least in this share of the time two worked at once."""
    stats = result.summary.stats
    shares = {
        "target": stats.target_seconds / stats.seconds,
        "draft": stats.draft_seconds / stats.seconds,
        "judge": stats.verifier_seconds / stats.seconds,
    }
    return shares | {"overlap": max(0.0, sum(shares.values()) - 1)}


@dataclass(frozen=True)
class Experiment:
    """`problems`: the default number of tiny problems. `heads`: the columns of
    `lr report` to show, after those of `extra`. `drawn`: the columns that the figure
    shows as bars. `timed`: whether it measures speed, so problems are answered one at a
    time."""

    title: str
    problems: int
    arms: Callable[[Lab], list[Arm]]
    heads: tuple[str, ...]
    drawn: tuple[str, ...]
    extra: Callable[[ArmResult], Row] = lambda result: {}
    timed: bool = True

    def rows(self, results: Sequence[ArmResult]) -> list[Row]:
        rows = [
            {
                **result.arm.cells,
                **self.extra(result),
                **{head: result.summary.row[head] for head in self.heads},
            }
            for result in results
        ]
        if self.arms is budget_arms:
            add_product_law(results, rows)
        return rows


RIGHT = ("right", "right, 95 %")
FASTER = ("speedup", "speedup, 95 %", "middle half", "tokens/pass")
KEPT = ("steps kept", "tokens kept")
FLIPS = ("lost", "won", "p")
EXPERIMENTS = {
    "speedup": Experiment(
        "Modes side by side",
        problems=60,
        arms=speedup_arms,
        heads=(*RIGHT, "tokens/s", *FASTER, *KEPT, "length", "wasted", *FLIPS),
        drawn=("right", "speedup"),
    ),
    "verifiers": Experiment(
        "Verifiers: what is accepted, and what it costs",
        problems=300,
        arms=verifier_arms,
        heads=(*RIGHT, "steps kept", "tokens/pass", *FLIPS),
        drawn=("steps kept", "right"),
        extra=verdict_cost,
        timed=False,
    ),
    "width": Experiment(
        "Width at depth 2",
        problems=24,
        arms=width_arms,
        heads=(*RIGHT, "steps kept", *FASTER, "wasted"),
        drawn=("places kept", "speedup"),
        extra=places_kept,
    ),
    "profile": Experiment(
        "Where the time goes",
        problems=12,
        arms=profile_arms,
        heads=("tokens/s", *FASTER),
        drawn=("target", "overlap"),
        extra=time_shares,
    ),
    "budget": Experiment(
        "A budget of M positions per target pass",
        problems=16,
        arms=budget_arms,
        heads=(*KEPT, *FASTER),
        drawn=("tokens/pass", "speedup"),
    ),
    "segmentation": Experiment(
        "Where steps end",
        problems=24,
        arms=segmentation_arms,
        heads=(*RIGHT, "steps kept", *FASTER),
        drawn=("steps kept", "speedup"),
        extra=step_sizes,
    ),
}


def write_results(
    name: str,
    results: Sequence[ArmResult],
    folder: Path,
    command: str,
    conditions: Mapping[str, Any],
) -> list[Path]:
    """Write NAME.md, NAME.json and, with matplotlib, NAME.png and NAME.svg; return the
    paths."""
    experiment = EXPERIMENTS[name]
    rows = experiment.rows(results)
    title = f"{experiment.title}, {len(results[0].lab.items)} problems"
    store = Store(folder)
    facts = ", ".join(f"{key} {value}" for key, value in conditions.items())
    lines = [f"# {title}", "", "```", command, "```", ""]
    lines += report.markdown(rows, [result.summary for result in results])
    lines.append(f"Conditions: {facts}.")
    store.write_lines(f"{name}.md", lines)
    content = {
        "title": title,
        "command": command,
        "conditions": dict(conditions),
        "columns": list(rows[0]),
        "rows": report.plain([list(row.values()) for row in rows]),
    }
    store.write(f"{name}.json", content)
    figures = []
    if find_spec("matplotlib"):
        labels = [" ".join(map(report.cell, r.arm.cells.values())) for r in results]
        panels = [report.bars(head, labels, rows) for head in experiment.drawn]
        figures = draw(panels, folder / name, title)
    return [folder / f"{name}.md", folder / f"{name}.json", *figures]
