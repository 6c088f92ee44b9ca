"""`lr run`: a data set in one of the modes, with the official tool's flags; graded, written as it
comes, and resumed where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lr.commands.run_models import RunModels
from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

if TYPE_CHECKING:
    from rich.console import Console

    from lr.lab.eval.items import Item
    from lr.lab.eval.running import Evaluation, Plan
    from lr.options import GenerateOptions

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
    allow_unsafe_code: bool = False
    """Run programs that a model wrote even where there is no sandbox."""
    code_seconds: float = 10.0
    """Time limit of a program."""
    code_memory_mb: int = 1024
    """Memory limit of a program."""

    def run(self) -> None:
        from lr.lab.eval.datasets import load_items
        from lr.lab.eval.grading import grader_for
        from lr.lab.eval.items import fingerprint
        from lr.lab.eval.modes import MODES, needs_draft_model, variant_of
        from lr.lab.eval.running import Evaluation
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
        with grader_for(items, limits, unsafe=self.allow_unsafe_code) as grader:
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
                from lr.commands.run_progress import watch

                watch(evaluation, notes)
        console().print(folder, soft_wrap=True)

    def _plan_memory(
        self, models: RunModels, mode: str, notes: Console, *, needs_draft: bool, judges: bool
    ) -> None:
        """Say what will be taken, if it is much, and refuse what will not fit."""
        from lr.commands.memory import SHOWN_FROM, memory_table, plan_of_run

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
        from lr.lab.eval.modes import engine_options, family_sampling
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
        from lr.lab.eval.keeping import Keeping
        from lr.lab.eval.running import Plan

        keeping = Keeping(self.save_pairs, self.save_traces)
        return Plan(
            items,
            mode,
            options,
            self.n_samples,
            self.concurrency,
            self.max_tokens_len,
            bare,
            keeping=keeping,
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
