"""`lr run`: a data set in one of the modes, with the official tool's flags; graded, written as it
comes, and resumed where it stopped. `lr report`: runs side by side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console

from lr.commands.run_models import RunModels
from lr.commands.show import console, progress, require_folders, table
from lr.errors import SettingError
from lr.options import LOOKAHEAD, Driver, GenerateOptions, ScheduleName, TokenDrafter
from lr.trace import Stats
from lr.types import require

if TYPE_CHECKING:
    from lr.lab.eval.report import Row
    from lr.lab.eval.running import Done, Evaluation

SHOWN_FROM = 1 << 30
"""A memory plan of fewer bytes than this is checked, not shown."""


@dataclass(frozen=True)
class Run:
    """Answer the problems of a data set and grade the answers. The same command again goes on where
    it was interrupted."""

    dataset: str = "aime-2024.jsonl"
    """A JSONL file (AIME, AMC, MATH, GSM8K, HumanEval, LiveCodeBench, GPQA, MT-Bench layouts),
    tiny:N, plans:N, or a hub id."""
    start_qid: int | None = None
    """First problem, counted from 0."""
    end_qid: int | None = None
    """The problem after the last one."""
    prefix: str = "AIME"
    """What the name of the output folder begins with."""
    output: Path | None = None
    """The output folder. None: runs/PREFIX_MODE_ and a word made of the settings, so that the same
    command finds its folder again."""
    models: RunModels = field(default_factory=RunModels)
    mode: Literal["ar", "sd", "lr", "lr+sd", "draft", "specreason"] | None = None
    """None: what --use_spec and --enable_n_gram say. draft: the draft alone. specreason: the target
    scores the draft's steps."""
    use_spec: bool = False
    """Lookahead Reasoning (modes lr and lr+sd)."""
    enable_n_gram: bool = False
    """Token-level speculation by prompt lookup (modes sd and lr+sd)."""
    max_depth: int = 4
    """How many draft steps ahead."""
    width: int = 1
    """How many alternatives per step."""
    ignore_half_sentence: bool = False
    """Do not accept a draft for the step that follows a cut one."""
    num_speculative_tokens: int = 6
    """How many tokens are guessed ahead."""
    prompt_lookup_max: int = 2
    """Longest n-gram that prompt lookup looks for."""
    drafter: TokenDrafter = "ngram"
    """Who guesses tokens in modes sd and lr+sd."""
    max_tokens_len: int = 37000
    """Longest prompt and answer together, in tokens."""
    max_step_tokens: int = 100
    """A step is cut here."""
    schedule: ScheduleName = "depth"
    """When target steps begin; see lr generate."""
    driver: Driver = "lockstep"
    """Whether draft and target take turns or run at the same time."""
    n_samples: int = 1
    """Answers per problem."""
    concurrency: int = 1
    """Problems that are worked on together."""
    seed: int = 0
    """Same seed, same answers."""
    temperature: float | None = None
    """None, also below: the checkpoint's generation_config.json, else its family's (Qwen3: 0.6,
    0.95, 20; R1-Distill: 0.6, 0.95)."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    protocol: Literal["generate", "acceptance"] = "generate"
    """acceptance: at every position draft and target write a step, the verifier judges, one is
    appended (how the paper measures)."""
    save_pairs: bool = False
    """Keep every judged pair of steps, for lr verify and lr drift."""
    save_traces: bool = False
    """Keep every event, for timelines."""
    run_code: bool = False
    """Run the programs that a model wrote, to grade them: in bubblewrap, without network and
    without your files."""
    allow_unsafe_code: bool = False
    """Run them even if bubblewrap is missing: they can then read and write what you can."""
    code_seconds: float = 10.0
    """Time limit of a program."""
    code_memory_mb: int = 1024
    """Memory limit of a program."""

    def run(self) -> None:
        from lr.commands.info import memory_table
        from lr.engine.load import speaks_tiny
        from lr.lab.eval.datasets import fingerprint, load_items
        from lr.lab.eval.grading import grader_for
        from lr.lab.eval.running import Artifacts, Evaluation, Plan, run_head, variant_of
        from lr.lab.eval.sandbox import Limits
        from lr.lab.eval.store import Store

        mode = self.chosen_mode()
        self._check(mode)
        notes = console(stderr=True)
        models, note = self.models.chosen(self.dataset)
        models = models.used_in(mode, self.drafter)
        data = fingerprint(load_items(self.dataset, seed=self.seed))
        items = load_items(self.dataset, seed=self.seed, start=self.start_qid, end=self.end_qid)
        limits = Limits(self.code_seconds, self.code_memory_mb)
        if note:
            notes.print(f"note: {note}", style="yellow")
        run, unsafe = self.run_code, self.allow_unsafe_code
        with grader_for(items, limits, run_code=run, unsafe=unsafe) as grader:
            settings = self._settings(mode, models, data)
            head = run_head("lr run", settings, sorted(set(self.models.devices())))
            store = Store.open(self.output or self._folder(mode, settings), head)
            memory = models.memory(self._options(mode), self.max_tokens_len, self.concurrency)
            if memory is not None:
                if memory.needed >= SHOWN_FROM or not all(one.fits for one in memory.devices):
                    notes.print(memory_table(memory))
                memory.check()
            with models.load() as reasoner:
                plan = Plan(
                    items,
                    mode,
                    self._options(mode, reasoner.codec.name),
                    self.n_samples,
                    self.concurrency,
                    self.max_tokens_len,
                    bare=speaks_tiny(reasoner.codec),
                    variant=variant_of(mode, reasoner.models),
                    artifacts=Artifacts(self.save_pairs, self.save_traces),
                )
                evaluation = Evaluation(reasoner, plan, store, grader)
                total, left = len(plan.keys), len(evaluation.missing)
                there = f", {total - left} of them there already" if left < total else ""
                notes.print(
                    f"mode {mode}: {total} answers to {len(items)} problems{there}; results in "
                    f"{store.path}"
                )
                watch(evaluation, notes)
        console().print(store.path, soft_wrap=True)

    def chosen_mode(self) -> str:
        """The mode that flags and switches agree on. Raises `SettingError` where they contradict
        each other."""
        switches = {"--use_spec": self.use_spec, "--enable_n_gram": self.enable_n_gram}
        said = {(False, False): "ar", (True, False): "lr", (False, True): "sd"}.get(
            (self.use_spec, self.enable_n_gram), "lr+sd"
        )
        if self.mode is None:
            return said
        if said in ("ar", self.mode) or self.mode == "lr+sd":  # each switch is a part of lr+sd
            return self.mode
        given = " and ".join(name for name, on in switches.items() if on)
        raise SettingError(
            f"--mode {self.mode} contradicts {given}, which means mode {said}; leave one of them "
            "out."
        )

    def _check(self, mode: str) -> None:
        self.models.check()
        for name in ("n_samples", "concurrency", "max_tokens_len"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number >= 1")
        if self.enable_n_gram and self.drafter != "ngram":
            raise SettingError(
                f"--enable_n_gram means drafter ngram, and --drafter is {self.drafter!r}; leave "
                "one of them out."
            )
        if self.save_pairs and mode not in LOOKAHEAD:
            raise SettingError(
                f"--save_pairs keeps the pairs that a verifier judges, and mode {mode!r} compares "
                "none; use mode lr."
            )
        if self.save_pairs and self.n_samples > 1 and self.concurrency > 1:
            raise SettingError(
                "--save_pairs tells problems apart by their prompts: take --n_samples 1 or "
                "--concurrency 1."
            )
        self._options(mode)

    def _options(self, mode: str, checkpoint: str | None = None) -> GenerateOptions:
        """The engine's settings. What neither the flags nor the generation_config.json of
        `checkpoint` say about sampling is its family's custom."""
        from lr.lab.eval.running import engine_options, family_sampling
        from lr.model.codec import Codec

        sampling = {
            name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")
        }
        if checkpoint is not None:
            stated = Codec.load(checkpoint).generation_defaults
            if stated.do_sample is not False and stated.temperature is None:
                custom = family_sampling(checkpoint)
                sampling = {n: custom.get(n) if v is None else v for n, v in sampling.items()}
        options = GenerateOptions(
            mode="lr",
            depth=self.max_depth,
            width=self.width,
            schedule=self.schedule,
            driver=self.driver,
            drafter="ngram" if mode == "sd" and self.drafter == "step" else self.drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            prompt_lookup_max=self.prompt_lookup_max,
            seed=self.seed,
            max_step_tokens=self.max_step_tokens,
            ignore_half_sentence=self.ignore_half_sentence,
            **sampling,
        )
        return engine_options(mode, self.protocol, options)

    def _settings(self, mode: str, models: RunModels, data: str) -> dict[str, Any]:
        """What an answer and its time depend on: a run that differs in any of it is another run."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("start_qid", "end_qid", "n_samples", "prefix", "output", "models"):
            del own[name]
        del own["use_spec"], own["enable_n_gram"], own["run_code"]
        return {**own, "mode": mode, "data": data, **models.settings()}

    def _folder(self, mode: str, settings: dict[str, Any]) -> Path:
        said = json.dumps(settings, sort_keys=True, default=str).encode()
        digest = hashlib.blake2b(said, digest_size=4).hexdigest()
        return Path("runs", f"{self.prefix}_{mode}_{digest}")


@dataclass
class Tally:
    """Sums over the answers so far, those of earlier sessions included where they count."""

    graded: int = 0
    right: int = 0
    stats: Stats = field(default_factory=Stats)

    def add(self, done: Done) -> None:
        """Count an answer."""
        self.count(done.record.get("right"))
        if done.stats is not None:
            self.stats = self.stats + done.stats

    def count(self, right: bool | None) -> None:
        """Count a grade."""
        self.graded += right is not None
        self.right += right is True

    def line(self, evaluation: Evaluation) -> str:
        """Accuracy, speed and acceptance in a few words. Speed: tokens of this session per second
        of its wall time, over all problems together."""
        parts, session = [], evaluation.session
        if self.graded:
            parts.append(f"{self.right}/{self.graded} right ({self.right / self.graded:.0%})")
        if session["tokens"] and session["seconds"]:
            parts.append(f"{session['tokens'] / session['seconds']:.0f} tokens/s")
        if self.stats.step_acceptance is not None:
            parts.append(f"steps kept {self.stats.step_acceptance:.2f}")
        if self.stats.token_acceptance is not None:
            parts.append(f"tokens kept {self.stats.token_acceptance:.2f}")
        return ", ".join(parts)


def watch(evaluation: Evaluation, notes: Console) -> None:
    """Run an evaluation to its end with a progress bar, and say at the end how it went."""
    tally, keys = Tally(), set(evaluation.plan.keys)
    for key, record in evaluation.store.results():
        if key in keys:
            tally.count(record.get("right"))
    try:
        with (
            progress("answers", len(keys), len(keys) - len(evaluation.missing)) as advance,
            closing(evaluation.run()) as answers,
        ):
            for done in answers:
                tally.add(done)
                advance(tally.line(evaluation))
    finally:
        for done in evaluation.rescued:
            tally.add(done)
        there, line = len(evaluation.store.done() & keys), tally.line(evaluation)
        notes.print(f"{there} of {len(keys)} answers" + (f": {line}" if line else ""))
        if there < len(keys):
            notes.print("the same command again goes on with the others")


@dataclass(frozen=True)
class Report:
    """Compare runs: accuracy with intervals, speedup paired by problem, acceptance. Reads the
    official tool's folders too."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders that lr run, or the official tool, has written."""
    baseline: str | None = None
    """The run to compare with, by its folder or its mode. None: the first in mode ar."""
    json: Path | None = None
    """Also write the numbers to this file."""
    markdown: Path | None = None
    """Also write the table to this file."""
    figure: Path | None = None
    """Also draw accuracy and speed as bars: to this file and its twin, PNG and SVG. Needs
    matplotlib (the extra `plot`)."""

    def run(self) -> None:
        from lr.lab.eval.figure import draw, require_matplotlib
        from lr.lab.eval.grading import Grader
        from lr.lab.eval.report import choose_baseline, document, make_row, markdown, read_run

        if not self.runs:
            raise SettingError(
                "no run was named; give the folders that lr run has written, such as: lr report "
                "runs/*."
            )
        require_folders(json=self.json, markdown=self.markdown, figure=self.figure)
        if self.figure is not None:
            require_matplotlib()
        with Grader() as grader:
            runs = [read_run(path, grader) for path in self.runs]
        baseline = choose_baseline(runs, self.baseline)
        rows = [make_row(run, baseline) for run in runs]
        _show(rows)
        if self.json is not None:
            self.json.write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
        if self.markdown is not None:
            self.markdown.write_text(markdown(rows), encoding="utf-8")
        if self.figure is not None:
            for path in draw(_panels(rows), self.figure):
                console(stderr=True).print(f"drawn: {path}")


def _show(rows: Sequence[Row]) -> None:
    """The table and its notes, on standard output; columns that are empty throughout are left
    out."""
    from lr.lab.eval.report import HEADS, LEGEND, cells, notes

    filled = [cells(row) for row in rows]
    kept = [at for at in range(len(HEADS)) if at < 4 or any(row[at] for row in filled)]
    made = table([HEADS[at].replace(" ", "\n") for at in kept], text=2)
    for column in made.columns:
        column.overflow, column.no_wrap = "fold", False
    for row in filled:
        made.add_row(*(row[at] for at in kept))
    out = console(width=180)
    out.print(made)
    for note in notes(rows):
        out.print(f"- {note}")
    out.print(LEGEND, style="dim")


def _panels(rows: Sequence[Row]) -> list[Any]:
    """Accuracy and speed as bars, and speedups where there is a baseline."""
    from lr.lab.eval.experiment import bars

    names = [row.mode if row.mode != "?" else row.name[:12] for row in rows]
    panels = [
        bars("right (95 % interval)", names, rows, "accuracy", percent=True),
        bars("tokens per second", names, rows, "speed"),
    ]
    if any(row.speedup for row in rows):
        fast = [replace(row, speedup=row.speedup or 1.0) for row in rows]
        panels.append(bars("speedup (95 % interval)", names, fast, "speedup", line=1.0))
    return panels
