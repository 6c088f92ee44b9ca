"""`lr run`: answers and grades a data set, with the official tool's flags and defaults
(or the tiny models where those models cannot run). Saves every answer at once and
resumes where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from msgspec import convert
from rich.console import Console

from lr.commands.info import memory_table
from lr.commands.options import AnswerFlags, AnswerOptions, ModelChoice, spread
from lr.commands.show import console, progress, require_at_least
from lr.errors import SettingError
from lr.measure.datasets import between, fingerprint, load_items
from lr.measure.grading import Grader, grade_programs
from lr.measure.programs import CodeLimits, write_samples
from lr.measure.store import Store, digest_of
from lr.options import LOOKAHEAD, GenerateOptions, Mode, TokenDrafter
from lr.trace import Stats
from lr.types import require
from lr.watch.words import summary

if TYPE_CHECKING:
    from lr.measure.running import Evaluation
    from lr.model.device import DeviceMap

OFFICIAL = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
"""Target, draft, judge: the defaults of the official tool."""
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
SHOWN_FROM = 1 << 30  # bytes; a smaller memory plan is checked but not printed


@dataclass(frozen=True)
class RunModels(ModelChoice):
    """Models and devices. The defaults are the official tool's; for tiny:N, stories:N
    and on a machine without CUDA, they are the tiny models."""

    model: str = "auto"
    """The target. auto: Qwen/Qwen3-32B, its draft Qwen/Qwen3-1.7B and its judge
    Qwen/Qwen2.5-7B-Instruct; the tiny models for tiny:N and stories:N or without a CUDA
    device."""
    tensor_parallel: int | None = None
    """Ranks of the target. None: one per existing GPU of --target_gpu_id; 1 on the
    CPU."""
    target_gpu_id: str = "0,1"
    """With --device auto: CUDA devices of the target, by number."""
    draft_gpu_id: str = "2"  # With --device auto: CUDA device of the draft.
    judge_gpu_id: str = "3"  # With --device auto: CUDA device of the judge.
    draft_device: tyro.conf.Suppress[str | None] = None  # by number, see above
    judge_device: tyro.conf.Suppress[str | None] = None

    def named(self, dataset: str) -> RunModels:
        """These settings with every model named. Prints a note if they are not the
        official tool's."""
        import torch

        model = self.model
        if model == "auto":
            tiny = dataset.startswith(("tiny:", "stories:"))
            model = TINY[0] if tiny else OFFICIAL[0]
            if not tiny and not torch.cuda.is_available():
                model = TINY[0]
                note = (
                    f"no CUDA device here: using {', '.join(TINY)}, not {OFFICIAL[0]}"
                )
                console(stderr=True).print(f"note: {note}", style="yellow")
        family = TINY if model == TINY[0] else OFFICIAL
        verifier = self.verifier or "judge"
        judge = self.judge_model
        if judge is None and verifier.startswith("judge") and not self.server.address():
            judge = family[2]
        draft = self.draft_model or family[1]
        return replace(
            self, model=model, draft_model=draft, judge_model=judge, verifier=verifier
        )

    def used_in(self, mode: str, options: GenerateOptions) -> RunModels:
        """Settings from `named`, with None for the models that are not used. In mode
        draft the draft is the only model."""
        models = self
        if mode == "draft":
            assert self.draft_model is not None, "named"
            models = replace(
                self, model=self.draft_model, target_gpu_id=self.draft_gpu_id
            )
        if not options.needs_draft:
            models = replace(models, draft_model=None)
        if mode not in LOOKAHEAD:
            models = replace(models, judge_model=None, verifier=None)
        return models

    def devices(self) -> DeviceMap:
        """The devices of all three models. A default GPU number that this machine
        lacks becomes the last one it has; one that was asked for is refused."""
        import torch

        from lr.model.device import DeviceMap

        if self.placement.device != "auto" or not torch.cuda.is_available():
            return super().devices()
        count = torch.cuda.device_count()
        gpus = {}
        for role in ("target", "draft", "judge"):
            name = f"{role}_gpu_id"
            value = getattr(self, name)
            parts = value.split(",")
            usual = value == getattr(RunModels, name)
            fits = all(
                part.strip().isdecimal() and (usual or int(part) < count)
                for part in parts
            )
            expected = f"numbers such as 0 or 0,1 of the {count} CUDA devices here"
            require(fits, name, value, expected)
            numbers = dict.fromkeys(min(int(part), count - 1) for part in parts)
            gpus[role] = [torch.device("cuda", number) for number in numbers]
        others = {}  # draft and judge, if they run here
        if self.draft_model is not None:
            others["draft"] = gpus["draft"][0]
        if self.judge_model is not None and not self.server.address():
            others["judge"] = gpus["judge"][0]
        # they choose first, unless no GPU is left for the target
        free = [gpu for gpu in gpus["target"] if gpu not in others.values()]
        free = free or gpus["target"][:1]
        if self.model in TINY:
            free = free[:1]
        target = spread(free, self.tensor_parallel, self.placement.threads)
        return DeviceMap.of({"target": target, **others})


@dataclass(frozen=True)
class RunOptions(AnswerOptions):
    """The settings of an answer, with the official tool's defaults."""

    mode: tyro.conf.Suppress[Mode] = "lr"  # `RunCommand` has more modes
    drafter: TokenDrafter = "ngram"
    """What proposes the next tokens in sd and lr+sd; see lr generate."""
    ignore_half_sentence: bool = False
    """Accept no draft for the step after a cut one."""


@dataclass(frozen=True)
class RunCommand(AnswerFlags):
    """Answer and grade the problems of a data set. The same command continues a stopped
    run."""

    dataset: str = "aime-2024.jsonl"
    """A JSONL file (AIME, AMC, MATH, GSM8K, HumanEval, LiveCodeBench, GPQA, MT-Bench
    layouts), tiny:N, or stories:N."""
    start_qid: int | None = None  # Number of the first problem, from 0.
    end_qid: int | None = None  # Number after the last problem.
    prefix: str = "AIME"  # How the name of the output folder begins.
    output: Path | None = None
    """The output folder. None: runs/PREFIX_MODE_HASH with a hash of the settings, so
    the same command finds its folder again."""
    models: RunModels = field(default_factory=RunModels)
    mode: Literal["ar", "sd", "lr", "lr+sd", "draft"] | None = None
    """None: as --use_spec and --enable_n_gram say. draft: the draft alone."""
    use_spec: bool = False  # Lookahead Reasoning (modes lr and lr+sd).
    enable_n_gram: bool = False
    """Token-level speculation by prompt lookup (modes sd and lr+sd)."""
    generation: RunOptions = field(default_factory=RunOptions)
    max_tokens_len: int = 37000  # Longest prompt and answer together, in tokens.
    n_samples: int = 1  # Answers per problem.
    concurrency: int = 1  # Problems answered at the same time.
    protocol: Literal["generate", "acceptance"] = "generate"
    """acceptance, as the paper measures: at every position draft and target write a
    step, the verifier judges, and one of the two is appended."""
    save_pairs: bool = False
    """Save every judged pair of steps, for lr verify, with what target and draft say of
    it: the target reads every draft step, so such a run is slower."""
    save_traces: bool = False  # Save the trace of every answer.
    skip_bad_rows: bool = False  # Leave out rows that cannot be read, and count them.
    run_code: bool = False
    """Grade HumanEval by running the programs that the model wrote. THIS IS NO SANDBOX:
    they run with limits of time, memory and output, and can do all that you can; use a
    container without network. Without it, and for LiveCodeBench, the run writes the
    samples for the benchmark's own grader."""
    code_seconds: float = 10.0  # Time limit of a program.
    code_memory_mb: int = 1024  # Memory limit of a program.

    def run(self) -> None:
        from lr.measure import running

        # 1. What is to be answered, by which models, with which settings.
        notes = console(stderr=True)
        mode = self.chosen_mode()
        self._check(mode)
        options = self.options_in(mode)
        models = self.models.named(self.dataset).used_in(mode, options)
        bad_rows: list[str] | None = [] if self.skip_bad_rows else None
        problems = load_items(self.dataset, seed=options.seed, bad_rows=bad_rows)
        for row in (bad_rows or [])[:5]:
            notes.print(f"left out: {row}", style="yellow")
        if bad_rows:
            notes.print(f"{len(bad_rows)} bad rows are left out", style="yellow")
        items = between(problems, self.start_qid, self.end_qid)
        settings = self._settings(mode, options, models, fingerprint(problems))
        places = models.devices()
        devices = (*places.target, places.draft, places.judge)
        head = running.run_head(settings, devices)
        kind = mode if settings["mode"] else "variant"
        name = f"{self.prefix}_{kind}_{digest_of(head['settings'], 4)}"
        limits = CodeLimits(self.code_seconds, self.code_memory_mb)
        with (
            Grader(limits if self.run_code else None) as grader,
            Store.open(self.output or Path("runs", name), head) as store,
        ):
            memory = models.memory(options, self.max_tokens_len, self.concurrency)
            if max(map(memory.needed, memory.free)) >= SHOWN_FROM:
                notes.print(memory_table(memory))
            memory.check()
            with models.reasoner(models.model, models.draft_model) as reasoner:
                # 2. The first tokens, before anything is written.
                variant = self.load_variant(reasoner)
                if self.mode is None:  # else the flag wins
                    mode = variant.settings.get("mode", mode)
                    options = replace(options, mode=mode)
                evaluation = running.Evaluation(
                    reasoner,
                    store,
                    grader,
                    items,
                    options,
                    variant,
                    samples=range(self.n_samples),
                    concurrency=self.concurrency,
                    total_tokens=self.max_tokens_len,
                    draft_alone=mode == "draft",
                    save_pairs=self.save_pairs,
                    save_traces=self.save_traces,
                )
                if evaluation.missing and evaluation.warm_up():
                    # a new memory does not begin with these tokens
                    fresh = self.load_variant(reasoner)
                    evaluation.variant = replace(variant, drafter=fresh.drafter)
                # 3. The answers.
                total = len(evaluation.keys)
                done = total - len(evaluation.missing)
                notes.print(
                    f"mode {mode}: {total} answers to {len(items)} problems, {done} of "
                    f"them there already; results in {store.path}"
                )
                grade_programs(store, items, grader)
                watch(evaluation, notes)
            if samples := write_samples(store, items):
                notes.print(f"programs for the benchmark's grader: {samples}")
        console().print(store.path)

    def chosen_mode(self) -> str:
        """The mode that flags and switches agree on. Raises `SettingError` if they
        disagree."""
        by_switches = "ar"
        if self.use_spec:
            by_switches = "lr+sd" if self.enable_n_gram else "lr"
        elif self.enable_n_gram:
            by_switches = "sd"
        if self.mode is None:
            is_variant = self.variant is not None
            return "lr" if by_switches == "ar" and is_variant else by_switches
        # each switch is a part of lr+sd
        if by_switches in ("ar", self.mode) or self.mode == "lr+sd":
            return self.mode
        raise SettingError(
            f"--mode {self.mode} contradicts --use_spec or --enable_n_gram (mode "
            f"{by_switches}); leave one out."
        )

    def options_in(self, mode: str) -> GenerateOptions:
        """The settings of an answer in a mode."""
        engine_mode = "ar" if mode == "draft" else mode
        options = replace(self.generation, mode=engine_mode)  # type: ignore[arg-type]
        if self.protocol == "acceptance":
            options = replace(options, schedule="paper", depth=1, width=1)
        if self.variant is not None and mode == "lr":
            options = replace(options, drafter="draft")  # if the variant chooses lr+sd
        return options

    def _check(self, mode: str) -> None:
        require_at_least(self, n_samples=1, concurrency=1, max_tokens_len=1)
        self.models.server.address()
        drafter = self.generation.drafter
        fits = not self.enable_n_gram or drafter == "ngram"
        require(fits, "drafter", drafter, "'ngram', which --enable_n_gram means")
        if self.protocol == "acceptance":
            judged = f"'generate': mode {mode!r} judges no steps; use mode lr"
            require(mode in LOOKAHEAD, "protocol", self.protocol, judged)
        if self.save_pairs:
            require(mode in LOOKAHEAD, "mode", mode, "lr or lr+sd with --save_pairs")
            apart = 1 in (self.n_samples, self.concurrency)
            prompts = "1: --save_pairs tells samples apart by their prompts"
            require(apart, "concurrency", self.concurrency, prompts)
        if self.variant is not None:
            require(mode != "draft", "mode", mode, "lr or lr+sd with --variant")

    def _settings(
        self, mode: str | None, options: GenerateOptions, models: RunModels, data: str
    ) -> dict[str, Any]:
        """Everything that an answer and its time depend on; any difference makes
        another run."""
        settings = asdict(options) | models.settings()
        names = "max_tokens_len concurrency protocol save_pairs save_traces".split()
        settings |= {name: getattr(self, name) for name in names}
        variant = self.variant
        if variant is not None and self.mode is None:
            mode = None  # the variant's own
        return settings | {"mode": mode, "data": data, "variant": variant}


def tally_line(rights: Sequence[bool | None], stats: Stats) -> str:
    """How many answers are right, how many nobody has graded, and the statistics."""
    graded = [right for right in rights if right is not None]
    parts = []
    if graded:
        right = sum(graded)
        parts.append(f"{right}/{len(graded)} right ({right / len(graded):.0%})")
    if len(graded) < len(rights):
        parts.append(f"{len(rights) - len(graded)} NOT GRADED")
    if stats.tokens:
        parts.append(summary(stats))
    return ", ".join(parts)


def watch(evaluation: Evaluation, notes: Console) -> None:
    """Run an evaluation to its end with a progress bar, then print a summary: accuracy
    with earlier answers, statistics of this start. Its seconds are of the wall, over
    all problems together."""
    keys = set(evaluation.keys)
    earlier = evaluation.store.results()
    rights = [record.get("right") for key, record in earlier if key in keys]
    stats = Stats()
    started = time.monotonic()
    try:
        with (
            progress("answers", len(keys), len(rights)) as advance,
            closing(evaluation.run()) as records,
        ):
            for record in records:
                rights.append(record["right"])
                stats += convert(record["stats"], Stats)
                stats = replace(stats, seconds=time.monotonic() - started)
                advance(tally_line(rights, stats))
    finally:
        line = tally_line(rights, stats) or "none yet"
        notes.print(f"{len(rights)} of {len(keys)} answers: {line}")
        if len(rights) < len(keys):
            notes.print("the same command continues with the rest")
