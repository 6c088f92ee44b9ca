"""`lr run`: a data set in one of the modes, with the official tool's flags; graded, written as it
comes, and resumed where it stopped. `lr report`: runs side by side.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from lr.commands.options import AttentionName, DtypeName, Placement, ServerChoice, judge_address
from lr.commands.ranks import spread
from lr.commands.show import console
from lr.errors import SettingError
from lr.lab.endpoint.address import is_address
from lr.model.dummy import DUMMY_NOTE, dummy_name
from lr.tiny.names import CHECKPOINTS
from lr.trace import Stats
from lr.types import require

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from lr.lab.eval.datasets import Item
    from lr.lab.eval.report import Row
    from lr.lab.eval.running import Done, Evaluation, Plan
    from lr.model.parallel.start import Spread
    from lr.options import GenerateOptions
    from lr.reasoner import Reasoner

OFFICIAL = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
"""Target, draft, judge: the defaults of the official tool."""
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
PLANS = ("plans-target", "plans-draft", None)
"""There is no judge for plans: the oracle judges."""


@dataclass(frozen=True)
class RunModels:
    """Models and devices. What is not said is the official tool's choice; for tiny:N and plans:N,
    and where there is no CUDA device, it is a tiny family's."""

    model: str | None = None
    """The target. None: Qwen/Qwen3-32B; tiny-target for data set tiny:N and where there is no CUDA
    device; plans-target for plans:N.
    """
    draft_model: str | None = None
    """The draft. None: Qwen/Qwen3-1.7B, or tiny-draft beside tiny-target, plans-draft beside
    plans-target.
    """
    judge_model: str | None = None
    """The judge, or the encoder of verifier embedding. None: Qwen/Qwen2.5-7B-Instruct, or
    tiny-judge beside tiny-target.
    """
    verifier: str | None = None
    """judge, exact, embedding, score, likelihood, random, each with :threshold; oracle for the tiny
    languages. None: judge; for plans-target, which has none, oracle."""
    judge_port: int | None = None
    """The port of an OpenAI-compatible server on this machine that has the judge; --judge_model is
    then its name there.
    """
    target_gpu_id: str = "0,1"
    """CUDA devices of the target, by number."""
    draft_gpu_id: str = "2"
    """CUDA device of the draft."""
    judge_gpu_id: str = "3"
    """CUDA device of the judge."""
    tensor_parallel: int | None = None
    """Ranks over which the target is spread. None: one for each GPU of --target_gpu_id that is
    there; on the CPU 1.
    """
    device: str = "auto"
    """auto: the CUDA devices above where there are any, else MPS, else the CPU. Anything else is
    where all models run.
    """
    dtype: DtypeName | None = None
    """None: float32 on the CPU, the checkpoint's own elsewhere."""
    threads: int | None = None
    """CPU threads; None: one for the tiny models, torch's default for others."""
    num_blocks: int | None = None
    """Cache blocks of 16 tokens per model; None: as many as the answers can need."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights in the shape of each model (a published name, or a directory with a
    config.json): for measuring only.
    """
    attention: AttentionName = "auto"
    """flash, triton, sdpa or reference; auto: the first that works. lr info says which."""
    cuda_graphs: bool = True
    """Replay decoding steps from CUDA graphs, on CUDA."""
    server: ServerChoice = field(default_factory=ServerChoice)

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded."""
        if self.judge_port is not None:
            judge_address(self.judge_port, None)
            if is_address(self.judge_model):
                raise SettingError(
                    f"judge_port is {self.judge_port} and judge_model {self.judge_model!r}, an address with a port of its own; give one."
                )
        for name in ("target_gpu_id", "draft_gpu_id", "judge_gpu_id"):
            value = getattr(self, name)
            if not all(part.strip().isdecimal() for part in value.split(",")):
                raise SettingError(
                    f"{name} is {value!r}, expected numbers of CUDA devices such as 0 or 0,1."
                )

    def chosen(self, dataset: str) -> tuple[RunModels, str | None]:
        """These settings with every model named, and a note where that is not what the official
        tool would take.
        """
        import torch

        note = None
        model = self.model
        if model is None:
            family = dataset.partition(":")[0]
            model = {"tiny": TINY[0], "plans": PLANS[0]}.get(family, OFFICIAL[0])
            if model == OFFICIAL[0] and not torch.cuda.is_available():
                note = f"no CUDA device here: the models are {TINY[0]}, {TINY[1]} and {TINY[2]} instead of {OFFICIAL[0]} and its kin"
                model = TINY[0]
        _, draft, judge = {TINY[0]: TINY, PLANS[0]: PLANS}.get(model, OFFICIAL)
        usual = "oracle" if judge is None and self.judge_model is None else "judge"
        verifier = usual if self.verifier is None else self.verifier
        if self.judge_model is None and verifier.partition(":")[0] != "judge":
            judge_model = None
        else:
            judge_model = judge if self.judge_model is None else self.judge_model
        if self.judge_port is not None:
            judge_model, verifier = (
                judge_address(self.judge_port, self.judge_model),
                self.verifier or "judge",
            )
        draft_model = draft if self.draft_model is None else self.draft_model
        if self.load_format == "dummy":
            model, draft_model, note = dummy_name(model), dummy_name(draft_model), DUMMY_NOTE
            judge_model = (
                judge_model
                if judge_model is None or is_address(judge_model)
                else dummy_name(judge_model)
            )
        return replace(
            self, model=model, draft_model=draft_model, judge_model=judge_model, verifier=verifier
        ), note

    def load(self, mode: str, *, needs_draft: bool, judges: bool) -> Reasoner:
        """The reasoner for a mode, from settings that were `chosen`. Nothing is loaded that the
        mode does not use.
        """
        from lr.reasoner import Reasoner

        assert self.model is not None and self.draft_model is not None
        target = self.draft_model if mode == "draft" else self.model
        draft = self.draft_model if needs_draft else None
        placement = Placement(
            self.device, self.dtype, self.threads, self.num_blocks, self.attention, self.cuda_graphs
        )
        placement.set_threads(target, draft)
        places = self.devices()
        reasoner = Reasoner(
            target,
            draft,
            self.verifier if judges else "exact",
            judge=self.judge_model if judges else None,
            device={"target": self.target_device(mode), "draft": places[1], "judge": places[2]},
            dtype=placement.torch_dtype(),
            num_blocks=self.num_blocks,
            servers=self.server.servers(draft_alone=mode == "draft"),
        )
        return placement.attend(reasoner)

    def target_device(self, mode: str) -> torch.device | Spread:
        """Where the target goes, over several ranks if there are several devices for it. In mode
        draft it is the draft.
        """
        import torch

        place = self.devices()[1 if mode == "draft" else 0]
        devices = [torch.device(place)]
        if place.startswith("cuda") and self.device == "auto" and mode != "draft":
            tiny = self.model in CHECKPOINTS and self.target_gpu_id == RunModels.target_gpu_id
            numbers = [int(part) for part in self.target_gpu_id.split(",")][: 1 if tiny else None]
            devices = [
                torch.device("cuda", n) for n in numbers if n < torch.cuda.device_count()
            ] or devices
            asked = len(numbers) if self.tensor_parallel is None else self.tensor_parallel
            if len(devices) < asked and self.target_gpu_id != RunModels.target_gpu_id:
                raise SettingError(
                    f"target_gpu_id is {self.target_gpu_id!r}, of which {len(devices)} are in this machine; {asked} are needed "
                    f"(tensor_parallel: {self.tensor_parallel}). Name as many GPUs as there shall be ranks."
                )
        return spread(devices, self.tensor_parallel, self.threads)

    def devices(self) -> tuple[str, str, str]:
        """Where target, draft and judge run. A device that the machine does not have is replaced by
        the last one it has if it stands there by default; if it was asked for, it is refused."""
        import torch

        if self.device != "auto" or not torch.cuda.is_available():
            return (str(Placement(self.device).torch_device()),) * 3
        count, places = torch.cuda.device_count(), []
        for name in ("target_gpu_id", "draft_gpu_id", "judge_gpu_id"):
            number = int(getattr(self, name).split(",")[0])
            if number >= count and getattr(self, name) != getattr(RunModels, name):
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}, and this machine has {count} CUDA devices, numbered from 0."
                )
            places.append(f"cuda:{min(number, count - 1)}")
        return places[0], places[1], places[2]


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

    def line(self, tokens_per_second: float | None) -> str:
        """Accuracy, speed and acceptance in a few words."""
        parts = (
            [f"{self.right}/{self.graded} right ({self.right / self.graded:.0%})"]
            if self.graded
            else []
        )
        if tokens_per_second:
            parts.append(f"{tokens_per_second:.0f} tokens/s")
        if self.stats.step_acceptance is not None:
            parts.append(f"steps kept {self.stats.step_acceptance:.2f}")
        if self.stats.token_acceptance is not None:
            parts.append(f"tokens kept {self.stats.token_acceptance:.2f}")
        return ", ".join(parts)


def watch(evaluation: Evaluation, notes: Console) -> Tally:
    """Run an evaluation to its end with a bar (in a terminal), and say at the end how it went."""
    tally = Tally()
    for key, record in evaluation.store.results():
        if key in set(evaluation.plan.keys):
            tally.count(record.get("right"))
    total = len(evaluation.plan.keys)
    bar = Progress(
        TextColumn("{task.percentage:3.0f}%"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
    try:
        with bar, closing(evaluation.run()) as answers:
            task = bar.add_task("", total=total, completed=total - len(evaluation.missing))
            for done in answers:
                tally.add(done)
                bar.update(task, advance=1, description=tally.line(_speed(evaluation)))
    finally:
        for done in evaluation.rescued:
            tally.add(done)
        there = len(evaluation.store.done() & set(evaluation.plan.keys))
        notes.print(
            ": ".join(
                part
                for part in (f"{there} of {total} answers", tally.line(_speed(evaluation)))
                if part
            )
        )
        if there < total:
            notes.print("the same command again goes on with the others")
    return tally


def _speed(evaluation: Evaluation) -> float | None:
    """Tokens of this session per second of its wall time, over all problems together."""
    seconds = evaluation.session["seconds"]
    return evaluation.session["tokens"] / seconds if seconds else None


Mode = Literal["ar", "sd", "lr", "lr+sd", "draft", "specreason"]


@dataclass(frozen=True)
class Run:
    """Answer the problems of a data set and grade the answers. The same command again goes on where
    it was interrupted.
    """

    dataset: str = "aime-2024.jsonl"
    """A JSONL file (AIME, AMC, MATH, GSM8K, HumanEval, LiveCodeBench, GPQA, MT-Bench layouts),
    tiny:N, plans:N, or a hub id.
    """
    start_qid: int | None = None
    """First problem, counted from 0."""
    end_qid: int | None = None
    """The problem behind the last one."""
    prefix: str = "AIME"
    """What the name of the output folder begins with."""
    output: Path | None = None
    """The output folder. None: runs/PREFIX_MODE_ and a word made of the settings, so that the same
    command finds its folder again.
    """
    models: RunModels = field(default_factory=RunModels)
    mode: Mode | None = None
    """None: what --use_spec and --enable_n_gram say. draft: the draft alone. specreason: the target
    scores the draft's steps.
    """
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
    drafter: Literal["ngram", "suffix", "draft", "tree", "step"] = "ngram"
    """Who guesses tokens in modes sd and lr+sd."""
    max_tokens_len: int = 37000
    """Longest prompt and answer together, in tokens."""
    max_step_tokens: int = 100
    """A step is cut here."""
    schedule: Literal["sync", "paper", "depth"] = "depth"
    """When target steps begin; see lr generate."""
    driver: Literal["lockstep", "overlapped"] = "lockstep"
    """Whether draft and target take turns or run at the same time."""
    n_samples: int = 1
    """Answers per problem."""
    concurrency: int = 1
    """Problems that are worked on together."""
    seed: int = 0
    """Same seed, same answers."""
    temperature: float | None = None
    """None, also below: the checkpoint's generation_config.json, else its family's (Qwen3: 0.6,
    0.95, 20; R1-Distill: 0.6, 0.95).
    """
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    protocol: Literal["generate", "acceptance"] = "generate"
    """acceptance: at every position draft and target write a step, the verifier judges, one is
    appended (how the paper measures).
    """
    save_pairs: bool = False
    """Keep every judged pair of steps, for lr verify and lr drift."""
    save_traces: bool = False
    """Keep every event, for timelines."""
    run_code: bool = False
    """Run the programs that a model wrote, to grade them: in bubblewrap, without network and without
    your files.
    """
    allow_unsafe_code: bool = False
    """Run them even if bubblewrap is missing: they can then read and write what you can."""
    code_seconds: float = 10.0
    """Time limit of a program."""
    code_memory_mb: int = 1024
    """Memory limit of a program."""

    def run(self) -> None:
        from lr.lab.eval.datasets import fingerprint, load_items
        from lr.lab.eval.grading import grader_for
        from lr.lab.eval.running import MODES, Evaluation, needs_draft_model, variant_of
        from lr.lab.eval.sandbox import Limits
        from lr.lab.eval.store import Store

        mode = self.chosen_mode()
        assert mode in MODES
        self._check(mode)
        models, note = self.models.chosen(self.dataset)
        everything = load_items(self.dataset, seed=self.seed)
        items = load_items(self.dataset, seed=self.seed, start=self.start_qid, end=self.end_qid)
        limits = Limits(self.code_seconds, self.code_memory_mb)
        notes = console(stderr=True)
        if note:
            notes.print(f"note: {note}", style="yellow")
        run, unsafe = self.run_code, self.allow_unsafe_code
        with grader_for(items, limits, run_code=run, unsafe=unsafe) as grader:
            settings = self._settings(mode, models, fingerprint(everything))
            folder = self.output or Path("runs", f"{self.prefix}_{mode}_{_digest(settings)}")
            store = Store.open(folder, _head(settings, self))
            judges = mode in ("lr", "lr+sd")
            needs_draft = needs_draft_model(mode, self.drafter)
            self._plan_memory(models, mode, notes, needs_draft=needs_draft, judges=judges)
            reasoner = models.load(mode, needs_draft=needs_draft, judges=judges)
            with reasoner:
                plan = self._plan(
                    mode, items, self._options(mode, reasoner.codec.name), _bare(reasoner)
                )
                plan = dataclasses.replace(plan, variant=variant_of(mode, reasoner.models))
                evaluation = Evaluation(reasoner, plan, store, grader)
                notes.print(_what(evaluation, mode, folder))

                watch(evaluation, notes)
        console().print(folder, soft_wrap=True)

    def _plan_memory(
        self, models: RunModels, mode: str, notes: Console, *, needs_draft: bool, judges: bool
    ) -> None:
        """Say what will be taken, if it is much, and refuse what will not fit."""
        from lr.commands.info import SHOWN_FROM, memory_table, plan_of_run

        options, both = self._options(mode, ""), {"needs_draft": needs_draft, "judges": judges}
        plan = plan_of_run(models, mode, options, self.max_tokens_len, self.concurrency, **both)
        if plan is not None and (
            plan.needed >= SHOWN_FROM or not all(device.fits for device in plan.devices)
        ):
            notes.print(memory_table(plan))
        if plan is not None:
            plan.check()

    def chosen_mode(self) -> str:
        """The mode that flags and switches agree on. Raises `SettingError` where they contradict
        each other.
        """
        switched = {
            (False, False): "ar",
            (True, False): "lr",
            (False, True): "sd",
            (True, True): "lr+sd",
        }
        said = switched[self.use_spec, self.enable_n_gram]
        if self.mode is None:
            return said
        allowed = {
            "ar": (),
            "sd": ("sd",),
            "lr": ("lr",),
            "lr+sd": ("lr", "sd", "lr+sd"),
            "draft": (),
            "specreason": (),
        }
        if said != "ar" and said not in allowed[self.mode]:
            switches = " and ".join(
                name
                for name, on in (
                    ("--use_spec", self.use_spec),
                    ("--enable_n_gram", self.enable_n_gram),
                )
                if on
            )
            raise SettingError(
                f"--mode {self.mode} contradicts {switches}, which means mode {said}; leave one of them out."
            )
        return self.mode

    def _check(self, mode: str) -> None:
        self.models.check()
        for name in ("n_samples", "concurrency", "max_tokens_len"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "a whole number >= 1")
        if self.enable_n_gram and self.drafter != "ngram":
            raise SettingError(
                f"--enable_n_gram means drafter ngram, and --drafter is {self.drafter!r}; leave one of them out."
            )
        if self.save_pairs and mode not in ("lr", "lr+sd"):
            raise SettingError(
                f"--save_pairs keeps the pairs that a verifier judges, and mode {mode!r} compares none; use mode lr."
            )
        if self.save_pairs and self.n_samples > 1 and self.concurrency > 1:
            raise SettingError(
                "--save_pairs tells problems apart by their prompts: take --n_samples 1 or --concurrency 1."
            )
        self._options(mode, "")

    def _options(self, mode: str, checkpoint: str) -> GenerateOptions:
        """The engine's settings. What neither flags nor the checkpoint say about sampling is its
        family's custom.
        """
        from lr.lab.eval.running import engine_options, family_sampling
        from lr.options import GenerateOptions

        stated = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        if checkpoint and not _recommends(checkpoint):
            custom = family_sampling(checkpoint)
            stated = {
                name: custom.get(name) if value is None else value for name, value in stated.items()
            }
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
            **stated,
        )
        return engine_options(mode, self.protocol, options)

    def _plan(self, mode: str, items: list[Item], options: GenerateOptions, bare: bool) -> Plan:
        from lr.lab.eval.running import Artifacts, Plan

        artifacts = Artifacts(self.save_pairs, self.save_traces)
        return Plan(
            items,
            mode,
            options,
            self.n_samples,
            self.concurrency,
            self.max_tokens_len,
            bare,
            artifacts=artifacts,
        )

    def _settings(self, mode: str, models: RunModels, data: str) -> dict[str, Any]:
        """What an answer depends on, and what its time depends on: a run that differs in any of it
        is another run.
        """
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in (
            "start_qid",
            "end_qid",
            "n_samples",
            "prefix",
            "output",
            "models",
            "use_spec",
            "enable_n_gram",
            "run_code",
        ):
            del own[name]
        chosen = dataclasses.asdict(models)
        chosen |= models.server.tokenizers()
        judges, drafts = (
            mode in ("lr", "lr+sd"),
            mode != "ar" and (mode != "sd" or self.drafter in ("draft", "tree")),
        )
        used = {
            "model": mode != "draft",
            "draft_model": drafts,
            "judge_model": judges,
            "verifier": judges,
        }
        chosen = {
            name: value if used.get(name, True) else None
            for name, value in chosen.items()
            if name not in ("judge_port", "server")
        }
        return {**own, "mode": mode, "data": data, **chosen}


def _head(settings: dict[str, Any], flags: Run) -> dict[str, Any]:
    """The content of run.json."""
    from lr.lab.eval.running import versions

    devices = sorted(set(flags.models.devices()))
    return {"tool": "lr run", "settings": settings, "versions": versions(), "devices": devices}


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.blake2b(
        json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=4
    ).hexdigest()


def _bare(reasoner: Any) -> bool:
    from lr.engine.verification import speaks_tiny

    return speaks_tiny(reasoner.codec)


def _recommends(checkpoint: str) -> bool:
    """Whether a checkpoint's generation_config.json says how to sample."""
    from lr.model.codec import Codec

    stated = Codec.load(checkpoint).generation_defaults
    return stated.do_sample is False or stated.temperature is not None


def _what(evaluation: Evaluation, mode: str, folder: Path) -> str:
    plan = evaluation.plan
    total, missing = len(plan.keys), len(evaluation.missing)
    there = f", {total - missing} of them there already" if missing < total else ""
    return f"mode {mode}: {total} answers to {len(plan.items)} problems{there}; results in {folder}"


@dataclass(frozen=True)
class Report:
    """Compare runs: accuracy with intervals, speedup paired by problem, acceptance. Reads the
    official tool's folders too.
    """

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
    matplotlib (the extra `plot`).
    """

    def run(self) -> None:
        from lr.lab.eval.grading import Grader
        from lr.lab.eval.report import choose_baseline, document, make_row, markdown, read_run

        if not self.runs:
            raise SettingError(
                "no run was named; give the folders that lr run has written, such as: lr report runs/*."
            )
        for path in (self.json, self.markdown, self.figure):
            if path is not None and not path.parent.is_dir():
                raise SettingError(
                    f"there is no folder {path.parent} for {path.name}; create it first."
                )
        if self.figure is not None:
            from lr.lab.eval.figure import require_matplotlib

            require_matplotlib()
        with Grader() as grader:
            runs = [read_run(path, grader) for path in self.runs]
        baseline = choose_baseline(runs, self.baseline)
        rows = [make_row(run, baseline) for run in runs]
        show(rows)
        if self.json is not None:
            self.json.write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
        if self.markdown is not None:
            self.markdown.write_text(markdown(rows), encoding="utf-8")
        if self.figure is not None:
            for path in draw_rows(rows, self.figure):
                console(stderr=True).print(f"drawn: {path}")


def show(rows: Sequence[Row]) -> None:
    """The table and its notes, on standard output."""
    from lr.lab.eval.report import HEADS, LEGEND, cells, notes

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    filled = [
        place for place in range(len(HEADS)) if place < 4 or any(cells(row)[place] for row in rows)
    ]
    for place in filled:
        table.add_column(
            HEADS[place].replace(" ", "\n"),
            justify="left" if place < 2 else "right",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(cells(row)[place] for place in filled))
    out = console()
    out.width = max(out.width, 180) if not out.is_terminal else out.width
    out.print(table)
    for note in notes(rows):
        out.print(f"- {note}")
    out.print(LEGEND, style="dim")


def draw_rows(rows: Sequence[Row], path: Path) -> list[Path]:
    """Accuracy and speed, and speedups where there is a baseline."""
    from lr.lab.eval.figure import Bars, Panel, draw

    names = [row.mode if row.mode != "?" else row.name[:12] for row in rows]
    values = [math.nan if row.accuracy is None else row.accuracy for row in rows]
    panels: list[Panel] = [
        Bars(
            "right (95 % interval)",
            names,
            values,
            [row.accuracy_interval for row in rows],
            percent=True,
        ),
        Bars("tokens per second", names, [row.speed or math.nan for row in rows]),
    ]
    if any(row.speedup for row in rows):
        panels.append(
            Bars(
                "speedup (95 % interval)",
                names,
                [row.speedup or 1.0 for row in rows],
                [row.speedup_interval for row in rows],
                line=1.0,
            )
        )
    return draw(panels, path)
