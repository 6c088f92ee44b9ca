"""`lr run`: answers and grades a data set, with the official tool's flags and defaults
(or the tiny models where those models cannot run). Saves every answer at once and resumes
where it stopped."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import convert
from rich.console import Console

from lr.commands.info import memory_plan, memory_table
from lr.commands.options import JudgeServer, Placement, VariantChoice, spread
from lr.commands.show import at_least, console, progress
from lr.errors import SettingError
from lr.measure.datasets import between, fingerprint, load_items
from lr.measure.grading import grade_programs, grader_for
from lr.measure.programs import CodeLimits, write_samples
from lr.measure.report import AnswerRecord
from lr.measure.store import Store
from lr.model.codec import Codec
from lr.model.dummy import DUMMY_NOTE, dummy_name
from lr.options import (
    LOOKAHEAD,
    MODES,
    Driver,
    GenerateOptions,
    ScheduleName,
    TokenDrafter,
)
from lr.tiny import CHECKPOINTS
from lr.trace import Stats
from lr.types import require

if TYPE_CHECKING:
    import torch

    from lr.measure import running
    from lr.measure.memory import MemoryPlan
    from lr.model.device import DeviceMap
    from lr.reasoner import Reasoner
    from lr.spec.verifiers.base import Verifier

OFFICIAL = ("Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct")
"""Target, draft, judge: the defaults of the official tool."""
TINY = ("tiny-target", "tiny-draft", "tiny-judge")
GPU_IDS = ("target_gpu_id", "draft_gpu_id", "judge_gpu_id")
SHOWN_FROM = 1 << 30  # Bytes. A smaller memory plan is checked but not printed.


@dataclass(frozen=True)
class RunModels:
    """Models and devices. The defaults are the official tool's; for tiny:N,
    stories:N and on a machine without CUDA, they are the tiny models."""

    model: str | None = None
    """The target. None: Qwen/Qwen3-32B; tiny-target for tiny:N and stories:N or without
    a CUDA device."""
    draft_model: str | None = None
    """The draft. None: Qwen/Qwen3-1.7B; tiny-draft for tiny-target."""
    judge_model: str | None = None
    """The judge, or the encoder of verifier embedding. None: Qwen/Qwen2.5-7B-Instruct;
    tiny-judge for tiny-target."""
    verifier: str | None = None
    """judge, exact, embedding, score, likelihood, random, each with :threshold; oracle
    for the tiny language. None: judge."""
    target_gpu_id: str = (
        "0,1"  # With --device auto: CUDA devices of the target, by number.
    )
    draft_gpu_id: str = "2"  # With --device auto: CUDA device of the draft.
    judge_gpu_id: str = "3"  # With --device auto: CUDA device of the judge.
    tensor_parallel: int | None = None
    """Ranks of the target. None: one per existing GPU of --target_gpu_id; 1 on the
    CPU."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights in the shape of each model (a published name, or a
    directory with a config.json), for measuring only."""
    placement: Placement = field(default_factory=Placement)
    server: JudgeServer = field(default_factory=JudgeServer)

    def check(self) -> None:
        """Refuse impossible flags before anything is loaded."""
        self.server.address()
        for name in GPU_IDS:
            value = getattr(self, name)
            numbers = all(part.strip().isdecimal() for part in value.split(","))
            require(numbers, name, value, "numbers of CUDA devices such as 0 or 0,1")

    def chosen(self, dataset: str) -> tuple[RunModels, str | None]:
        """These settings with every model named, and a note if they are not the
        official tool's."""
        import torch

        note, model = None, self.model
        if model is None:
            model = (
                TINY[0] if dataset.startswith(("tiny:", "stories:")) else OFFICIAL[0]
            )
            if model == OFFICIAL[0] and not torch.cuda.is_available():
                model, named = TINY[0], ", ".join(TINY)
                note = f"no CUDA device here: using {named} instead of {OFFICIAL[0]} and its family"
        family = TINY if model == TINY[0] else OFFICIAL
        draft = self.draft_model or family[1]
        judge: str | None = family[2]
        given, served = self.judge_model, self.server.address() is not None
        verifier = self.verifier or "judge"
        if given is not None or served or verifier.partition(":")[0] != "judge":
            judge = given
        if self.load_format == "dummy":
            model, draft, note = dummy_name(model), dummy_name(draft), DUMMY_NOTE
            if judge is not None and not served:
                judge = dummy_name(judge)
        made = replace(
            self, model=model, draft_model=draft, judge_model=judge, verifier=verifier
        )
        return made, note

    def used_in(self, mode: str, options: GenerateOptions) -> RunModels:
        """Settings from `chosen`, with None for the models that this mode and these
        options do not use. Mode draft uses the draft alone."""
        unused: dict[str, Any] = {"model": None} if mode == "draft" else {}
        if mode != "draft" and not options.needs_draft:
            unused |= {"draft_model": None}
        if mode not in LOOKAHEAD:
            unused |= {"judge_model": None, "verifier": None}
        return replace(self, **unused)

    def settings(self) -> dict[str, Any]:
        """Everything that an answer or its speed can depend on, so no ports."""
        left_out = ("placement", "server")
        own = {
            name: value for name, value in vars(self).items() if name not in left_out
        }
        served = self.server.address() is not None
        return own | asdict(self.placement) | ({"served_judge": True} if served else {})

    def load(self) -> Reasoner:
        """The reasoner. Call it on settings from `used_in`."""
        target, draft = self._writers()
        self.placement.set_threads(target, draft)
        verifier: str | Verifier | None = self.verifier or "exact"
        judge = self.judge_model
        if self.verifier is not None:
            verifier, judge = self.server.place(self.verifier, judge, target)
        return self.placement.reasoner(
            target, draft, verifier, judge, self.device_map()
        )

    def _writers(self) -> tuple[str, str | None]:
        """Target and draft. A draft that is alone acts as the target."""
        if self.model is None:
            assert self.draft_model is not None, "made by used_in"
            return self.draft_model, None
        return self.model, self.draft_model

    def device_map(self) -> DeviceMap:
        """The devices of all three models."""
        from lr.model.device import DeviceMap

        _, draft, judge = self.devices()
        return DeviceMap.of(
            {"target": self.target_device(), "draft": draft, "judge": judge}
        )

    def target_device(self) -> tuple[torch.device, ...]:
        """The devices of the target; several of them make several ranks."""
        import torch

        place = self.devices()[0 if self.model is not None else 1]
        devices = [torch.device(place)]
        if (
            place.startswith("cuda")
            and self.placement.device == "auto"
            and self.model is not None
        ):
            usual = self.target_gpu_id == RunModels.target_gpu_id
            numbers = [int(part) for part in self.target_gpu_id.split(",")]
            judges = self.judge_model is not None and self.server.address() is None
            here = (self.draft_model is not None, judges)
            taken = [
                place
                for place, one in zip(self.devices()[1:], here, strict=True)
                if one
            ]
            if (
                usual
            ):  # a small model needs one GPU; draft and judge choose theirs first
                free = [n for n in numbers if f"cuda:{n}" not in taken]
                numbers = (free or numbers)[
                    : 1 if not free or self.model in CHECKPOINTS else None
                ]
            there = [
                torch.device("cuda", n)
                for n in numbers
                if n < torch.cuda.device_count()
            ]
            devices = there or devices
            needed = (
                len(numbers) if self.tensor_parallel is None else self.tensor_parallel
            )
            known = (
                f"{needed} GPUs, one per rank; this machine has {len(devices)} of them"
            )
            enough = usual or len(devices) >= needed
            require(enough, "target_gpu_id", self.target_gpu_id, known)
        return spread(devices, self.tensor_parallel, self.placement.threads)

    def devices(self) -> tuple[str, str, str]:
        """The devices of target, draft and judge. A default GPU number that this
        machine lacks becomes the last one it has; a number that was asked for is
        refused."""
        import torch

        if self.placement.device != "auto" or not torch.cuda.is_available():
            return (str(self.placement.torch_device()),) * 3
        count, places = torch.cuda.device_count(), []
        for name in GPU_IDS:
            value = getattr(self, name)
            first = int(value.split(",")[0])
            there = first < count or value == getattr(RunModels, name)
            known = (
                f"a number from 0 to {count - 1}: this machine has {count} CUDA devices"
            )
            require(there, name, value, known)
            places.append(f"cuda:{min(first, count - 1)}")
        return places[0], places[1], places[2]

    def memory(self, options: GenerateOptions, tokens: int, share: int) -> MemoryPlan:
        """The memory that these models (from `used_in`) need."""
        writers, verifier = self._writers(), self.verifier or "exact"
        judges = verifier.startswith("judge") and self.server.address() is None
        names = (*writers, self.judge_model if judges else None)
        places, dtype = self.device_map(), self.placement.dtype
        how: dict[str, Any] = {"share": share, "num_blocks": self.placement.num_blocks}
        how |= {"verifier": verifier, "queues": True}
        return memory_plan(names, places, dtype, options, tokens, **how)


@dataclass(frozen=True)
class RunCommand:
    """Answer and grade the problems of a data set. The same command continues a stopped
    run."""

    dataset: str = "aime-2024.jsonl"
    """A JSONL file (AIME, AMC, MATH, GSM8K, HumanEval, LiveCodeBench, GPQA, MT-Bench
    layouts), tiny:N, stories:N, or a hub id."""
    start_qid: int | None = None  # Number of the first problem, from 0.
    end_qid: int | None = None  # Number after the last problem.
    prefix: str = "AIME"  # How the name of the output folder begins.
    output: Path | None = None
    """The output folder. None: runs/PREFIX_MODE_HASH with a hash of the settings, so
    the same command finds its folder again."""
    models: RunModels = field(default_factory=RunModels)
    mode: Literal["ar", "sd", "lr", "lr+sd", "draft", "specreason"] | None = None
    """None: as --use_spec and --enable_n_gram say. draft: the draft alone. specreason:
    the target scores the draft's steps."""
    own: VariantChoice = field(default_factory=VariantChoice)
    use_spec: bool = False  # Lookahead Reasoning (modes lr and lr+sd).
    enable_n_gram: bool = (
        False  # Token-level speculation by prompt lookup (modes sd and lr+sd).
    )
    max_depth: int = 4  # How many draft steps to write ahead.
    width: int = 1  # How many alternative draft steps to write per position.
    ignore_half_sentence: bool = False  # Accept no draft for the step after a cut one.
    num_speculative_tokens: int = 6  # The most tokens drafted ahead.
    prompt_lookup_max: int = 2  # Longest n-gram that prompt lookup looks up.
    drafter: TokenDrafter = "ngram"  # What proposes tokens in modes sd and lr+sd.
    max_tokens_len: int = 37000  # Longest prompt and answer together, in tokens.
    max_step_tokens: int = 100  # Longest step in tokens; a longer one is cut.
    schedule: ScheduleName = "depth"  # When target steps begin; see lr generate.
    driver: Driver = (
        "lockstep"  # Whether draft and target alternate or run at the same time.
    )
    n_samples: int = 1  # Answers per problem.
    concurrency: int = 1  # Problems answered at the same time.
    seed: int = 0  # Same seed, same answers.
    temperature: float | None = None
    """None, also for the next three: as in the checkpoint's generation_config.json,
    else its family's custom (Qwen3: 0.6, 0.95, 20; R1-Distill: 0.6, 0.95)."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    protocol: Literal["generate", "acceptance"] = "generate"
    """acceptance, as the paper measures: at every position draft and target write a
    step, the verifier judges, and one of the two is appended."""
    save_pairs: bool = False  # Save every judged pair of steps, for lr verify.
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

        mode = self.chosen_mode()
        self._check(mode)
        notes = console(stderr=True)
        models, note = self.models.chosen(self.dataset)
        models = models.used_in(mode, self._options(mode))
        bad_rows: list[str] | None = [] if self.skip_bad_rows else None
        problems = load_items(self.dataset, seed=self.seed, bad_rows=bad_rows)
        items = between(problems, self.start_qid, self.end_qid)
        data = fingerprint(problems)
        for row in (bad_rows or [])[:5]:
            notes.print(f"left out: {row}", style="yellow", markup=False)
        if bad_rows:
            notes.print(f"{len(bad_rows)} bad rows are left out", style="yellow")
        limits = CodeLimits(self.code_seconds, self.code_memory_mb)
        if note:
            notes.print(f"note: {note}", style="yellow")
        with grader_for(items, limits if self.run_code else None) as grader:
            settings, devices = (
                self._settings(mode, models, data),
                set(self.models.devices()),
            )
            head = running.run_head("lr run", settings, sorted(devices))
            said = json.dumps(settings, sort_keys=True, default=str).encode()
            digest = hashlib.blake2b(said, digest_size=4).hexdigest()
            usual = Path("runs", f"{self.prefix}_{mode}_{digest}")
            with Store.open(self.output or usual, head) as store:
                memory = models.memory(
                    self._options(mode), self.max_tokens_len, self.concurrency
                )
                if memory.needed >= SHOWN_FROM or not all(
                    one.fits for one in memory.devices
                ):
                    notes.print(memory_table(memory))
                memory.check()
                with models.load() as reasoner:
                    options = self._options(mode, reasoner.codec.name)
                    variant = running.variant_of(mode, reasoner, self.own.variant)
                    if variant is not None and self.mode in MODES:  # the flag wins
                        variant = replace(
                            variant, settings={**variant.settings, "mode": mode}
                        )
                    sizes = (self.n_samples, self.concurrency, self.max_tokens_len)
                    how = (
                        items,
                        mode,
                        options,
                        *sizes,
                        variant,
                        self.save_pairs,
                        self.save_traces,
                    )
                    grade_programs(store, items, grader)
                    evaluation = running.Evaluation(reasoner, store, grader, *how)
                    total, left = len(evaluation.keys), len(evaluation.missing)
                    there = (
                        f", {total - left} of them there already"
                        if left < total
                        else ""
                    )
                    what = f"{total} answers to {len(items)} problems{there}"
                    notes.print(f"mode {mode}: {what}; results in {store.path}")
                    watch(evaluation, notes)
                    if samples := write_samples(store, items):
                        notes.print(f"programs for the benchmark's grader: {samples}")
        console().print(store.path, soft_wrap=True)

    def chosen_mode(self) -> str:
        """The mode that flags and switches agree on. Raises `SettingError` if they
        disagree."""
        switches = {"--use_spec": self.use_spec, "--enable_n_gram": self.enable_n_gram}
        means = {(0, 0): "ar", (1, 0): "lr", (0, 1): "sd", (1, 1): "lr+sd"}
        said = means[self.use_spec, self.enable_n_gram]
        if self.mode is None:
            return "lr" if said == "ar" and self.own.variant is not None else said
        if (
            said in ("ar", self.mode) or self.mode == "lr+sd"
        ):  # each switch is a part of lr+sd
            return self.mode
        given = " and ".join(name for name, on in switches.items() if on)
        raise SettingError(
            f"--mode {self.mode} contradicts {given} (mode {said}); leave one out."
        )

    def _check(self, mode: str) -> None:
        self.models.check()
        at_least(self, n_samples=1, concurrency=1, max_tokens_len=1)
        fits = not self.enable_n_gram or self.drafter == "ngram"
        require(
            fits,
            "drafter",
            self.drafter,
            "'ngram', which is what --enable_n_gram means",
        )
        judges = not self.save_pairs or mode in LOOKAHEAD
        keeps = "lr or lr+sd: --save_pairs keeps the pairs that a verifier judges"
        require(judges, "mode", mode, keeps)
        apart = not self.save_pairs or 1 in (self.n_samples, self.concurrency)
        prompts = (
            "1 with several samples: --save_pairs tells answers apart by their prompts"
        )
        require(apart, "concurrency", self.concurrency, prompts)
        own = self.own.variant is None or mode not in ("draft", "specreason")
        require(own, "mode", mode, "lr or lr+sd with --variant")

    def _options(self, mode: str, checkpoint: str | None = None) -> GenerateOptions:
        """The engine's settings. A sampling setting that neither a flag nor
        `checkpoint`'s generation_config.json gives is as customary in the model's
        family."""
        from lr.measure import running

        filters = ("temperature", "top_p", "top_k", "min_p")
        sampling = {name: getattr(self, name) for name in filters}
        if checkpoint is not None:
            stated = Codec.load(checkpoint).generation_config
            if (
                stated.get("do_sample") is not False
                and stated.get("temperature") is None
            ):
                custom = running.family_sampling(checkpoint)
                sampling = {
                    n: custom.get(n) if v is None else v for n, v in sampling.items()
                }
        names = {f.name for f in fields(GenerateOptions)} - {"mode", "drafter"}
        same = {
            name: value for name, value in vars(self).items() if name in names
        } | sampling
        drafter = "ngram" if mode == "sd" and self.drafter == "step" else self.drafter
        if self.own.variant is not None and mode == "lr":
            drafter = "draft"  # used only if the variant switches to mode lr+sd
        options = GenerateOptions(
            mode="lr", depth=self.max_depth, drafter=drafter, **same
        )
        return running.engine_options(mode, self.protocol, options)

    def _settings(self, mode: str, models: RunModels, data: str) -> dict[str, Any]:
        """Everything that an answer and its time depend on; any difference makes
        another run."""
        left_out = {"start_qid", "end_qid", "n_samples", "prefix", "output", "models"}
        left_out |= {"use_spec", "enable_n_gram", "run_code", "own", "skip_bad_rows"}
        own = {
            name: value for name, value in vars(self).items() if name not in left_out
        }
        own |= {} if self.own.variant is None else {"variant": self.own.variant}
        return {**own, "mode": mode, "data": data, **models.settings()}


@dataclass
class RunTally:
    """Sums over the answers so far: `rights` includes earlier sessions, `stats` does
    not."""

    rights: list[bool | None]
    stats: Stats = field(default_factory=Stats)

    def add(self, record: AnswerRecord) -> None:
        self.rights.append(record["right"])
        self.stats += convert(record["stats"], Stats)

    def line(self, session: dict[str, float]) -> str:
        """Accuracy, speed and acceptance in a few words. The speed is the tokens of
        this session per second of its wall time, over all problems together."""
        parts, graded = [], [right for right in self.rights if right is not None]
        if graded:
            right = sum(graded)
            parts.append(f"{right}/{len(graded)} right ({right / len(graded):.0%})")
        if len(graded) < len(self.rights):
            parts.append(f"{len(self.rights) - len(graded)} NOT GRADED")
        if session["tokens"] and session["seconds"]:
            parts.append(f"{session['tokens'] / session['seconds']:.0f} tokens/s")
        steps, tokens = self.stats.step_acceptance, self.stats.token_acceptance
        kept = {"steps kept": steps, "tokens kept": tokens}
        parts += [
            f"{name} {rate:.2f}" for name, rate in kept.items() if rate is not None
        ]
        if self.stats.unjudged:
            parts.append(f"{self.stats.unjudged} draft steps not judged")
        return ", ".join(parts)


def watch(evaluation: running.Evaluation, notes: Console) -> None:
    """Run an evaluation to its end with a progress bar, then print a summary."""
    keys, there, session = (
        set(evaluation.keys),
        evaluation.store.results(),
        evaluation.session,
    )
    tally = RunTally([record.get("right") for key, record in there if key in keys])
    try:
        with (
            progress(
                "answers", len(keys), len(keys) - len(evaluation.missing)
            ) as advance,
            closing(evaluation.run()) as answers,
        ):
            for done in answers:
                tally.add(done)
                advance(tally.line(session))
    finally:
        for done in evaluation.rescued:
            tally.add(done)
        count, line = len(evaluation.store.done() & keys), tally.line(session)
        notes.print(f"{count} of {len(keys)} answers" + (f": {line}" if line else ""))
        if count < len(keys):
            notes.print("the same command continues with the rest")
