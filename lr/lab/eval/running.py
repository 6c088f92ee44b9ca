"""One evaluation: problems in, graded results out, on disk as they come. Started again, it goes on
with what is missing.

The loop knows no terminal: it yields a `Done` per answer, and the command shows what it likes.
Answers are graded in a thread of their own, so that comparing or running programs does not hold up
the generation; the clock of a problem stops with its last token. Read next: `store.py`, where
results lie, and `report.py`, which reads them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lr.engine.answer import Asked
from lr.engine.crowd import Crowd
from lr.errors import ContextError, LRError
from lr.lab.eval.grading import Grade, Grader
from lr.lab.eval.items import Item
from lr.lab.eval.keeping import Keeping, Recorder
from lr.lab.eval.prompts import ask
from lr.lab.eval.store import Key, Store
from lr.lab.trace.file import trace_lines
from lr.lab.trace.traced import trace_of
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.seams import Variant
from lr.trace import Stats
from lr.types import Finish

PACKAGES = ("lookahead-reasoning", "torch", "transformers", "math-verify")
WARM_UP = 16
"""Tokens."""


@dataclass(frozen=True)
class Plan:
    """What is to be run. `options` are those of every answer but for the sample; `total_tokens`
    bounds prompt and answer together.

    `bare`: the model is asked the question alone, without an instruction how to answer.
    """

    items: Sequence[Item]
    mode: str
    options: GenerateOptions
    samples: int = 1
    concurrency: int = 1
    total_tokens: int | None = None
    bare: bool = False
    variant: Variant | None = None
    keeping: Keeping = field(default_factory=Keeping)

    @property
    def keys(self) -> list[Key]:
        """Every answer that is wanted, sample by sample."""
        return [Key(item.number, sample) for sample in range(self.samples) for item in self.items]


@dataclass(frozen=True)
class Done:
    """An answer that is on disk now. `stats` is None where nothing was generated (the prompt did
    not fit).
    """

    key: Key
    record: dict[str, Any]
    stats: Stats | None


class Evaluation:
    """Runs a plan with a reasoner into a store. Iterate over `run`; leaving it early closes
    everything and loses nothing that was done.
    """

    def __init__(self, reasoner: Reasoner, plan: Plan, store: Store, grader: Grader) -> None:
        self.reasoner, self.plan, self.store, self.grader = reasoner, plan, store, grader
        self.items = {item.number: item for item in plan.items}
        finished = store.done()
        self.missing = [key for key in plan.keys if key not in finished]
        self.recorder: Recorder | None = None
        self.rescued: list[Done] = []
        """Answers that were complete, and not yet graded, when the run was broken off: kept, but
        not yielded.
        """
        self.session: dict[str, Any] = {
            "started": time.time(),
            "problems": 0,
            "tokens": 0,
            "seconds": 0.0,
        }

    def run(self) -> Generator[Done, None, None]:
        """Answer, grade and write what is missing; yield it as it is written. Raises `StorageError`
        when the disk fills.
        """
        asked, refused = self._prepare()
        name = f"session-{len(self.store.sessions())}.json"
        for key, why in refused:
            record = self._failed(key, why)
            self.store.write(key.file, record)
            yield Done(key, record, None)
        self._warm_up(list(asked))
        started = time.perf_counter()
        with ThreadPoolExecutor(1, thread_name_prefix="grading") as pool:
            waiting: list[tuple[Key, Asked, Future[Grade]]] = []
            try:
                for one in Crowd(list(asked), self.plan.concurrency).run():
                    key, result = asked[one], one.result
                    self.session["tokens"] += len(result.tokens)
                    self.session["problems"] += 1
                    self.session["seconds"] = time.perf_counter() - started
                    waiting.append(
                        (
                            key,
                            one,
                            pool.submit(self.grader.grade, self.items[key.number], result.text),
                        )
                    )
                    for done in [entry for entry in waiting if entry[2].done()]:
                        waiting.remove(done)
                        yield self._keep(name, *done)
            except BaseException:  # the pool waits for their grades anyway
                with suppress(LRError):
                    self.rescued = [self._keep(name, *done) for done in waiting]
                raise
            for done in waiting:
                yield self._keep(name, *done)

    def _prepare(self) -> tuple[dict[Asked, Key], list[tuple[Key, str]]]:
        """The questions, and those whose prompt does not fit the context with the reason."""
        asked: dict[Asked, Key] = {}
        refused = []
        share = min(self.plan.concurrency, max(1, len(self.missing)))
        verifier = self.reasoner.verifier
        variant = self.plan.variant
        if self.plan.keeping.pairs:
            inner = (variant.verifier if variant is not None else None) or verifier
            assert not isinstance(inner, str), "modes that judge have their verifier"
            self.recorder = Recorder(inner)
            variant = replace(variant or Variant(), verifier=self.recorder)
        for key in self.missing:
            question = ask(self.items[key.number], bare=self.plan.bare)
            options = replace(self.plan.options, sample=key.sample)
            try:
                if self.plan.total_tokens is not None:
                    options = replace(options, max_tokens=self._room(question, options))
                one = Asked(
                    self.reasoner.models,
                    verifier,
                    question,
                    options,
                    variant,
                    share,
                    detailed=self.plan.keeping.detailed,
                )
            except ContextError as error:
                refused.append((key, str(error)))
                continue
            asked[one] = key
        return asked, refused

    def _warm_up(self, asked: Sequence[Asked]) -> None:
        """A few tokens for nobody: the first forwards pay for what is set up once, and a draft's
        process for its start.
        """
        for one in asked[:1]:
            options = replace(one.options, max_tokens=min(WARM_UP, one.limits.max_tokens))
            list(
                Crowd(
                    [Asked(one.models, one.verifier, one.question, options, self.plan.variant)], 1
                ).run()
            )

    def _room(self, question: str, options: GenerateOptions) -> int:
        """How many tokens the answer may have, if prompt and answer together have at most
        `total_tokens`.
        """
        codec = self.reasoner.codec
        prompt = len(
            codec.chat(question, system=options.system, enable_thinking=options.enable_thinking)
        )
        assert self.plan.total_tokens is not None
        room = self.plan.total_tokens - prompt
        if room < 1:
            raise ContextError(
                f"the prompt has {prompt} tokens, and max_tokens_len allows {self.plan.total_tokens} for prompt and answer together."
            )
        return room if options.max_tokens is None else min(room, options.max_tokens)

    def _keep(self, session: str, key: Key, asked: Asked, grading: Future[Grade]) -> Done:
        result = asked.result
        stats = result.stats
        record = self._record(key, result, stats, grading.result())
        if self.plan.keeping.traces:
            trace = trace_of(asked)
            self.store.write_lines(f"traces/{key.file}l", trace_lines(trace.header, trace.records))
        if self.recorder is not None:
            self.store.write(
                f"pairs/{key.file}", self.recorder.take(result.prompt, self.items[key.number])
            )
        self.store.write(key.file, record)
        self.store.write(session, self.session)
        return Done(key, record, stats)

    def _record(self, key: Key, result: Result, stats: Stats, grade: Grade) -> dict[str, Any]:
        """One result: the official tool's fields under their names, then ours."""
        item, decode = self.items[key.number], self.reasoner.codec.tokenizer.decode
        prompt = decode(list(result.prompt))
        return {
            "question_id": key.number,
            "question": item.question,
            "draft_prompt": prompt,
            "target_prompt": prompt,
            "generation_text": result.text,
            "full_text": prompt + decode(list(result.tokens)),
            "gold": item.gold,
            "time_taken": stats.seconds,
            "speed": stats.tokens_per_second or 0.0,
            "sample": key.sample,
            "name": item.name,
            "task": item.task.value,
            "mode": self.plan.mode,
            "right": grade.right,
            "answer": grade.answer,
            "where": grade.where,
            "why": grade.why,
            "finished": result.finished,
            "cut_steps": sum(step.finish is Finish.LENGTH for step in result.steps),
            "stats": asdict(stats) | {"wasted_target_tokens": max(0, wasted(result, stats))},
            "steps": [[step.origin.value, len(step.tokens)] for step in result.steps],
            "generation_tokens": list(result.tokens),
            "full_tokens": [*result.prompt, *result.tokens],
        }

    def _failed(self, key: Key, why: str) -> dict[str, Any]:
        """The record of a problem that cannot be asked: wrong, with its reason, and no tokens."""
        item = self.items[key.number]
        return {
            "question_id": key.number,
            "question": item.question,
            "generation_text": "",
            "full_text": "",
            "gold": item.gold,
            "time_taken": 0.0,
            "speed": 0.0,
            "sample": key.sample,
            "name": item.name,
            "task": item.task.value,
            "mode": self.plan.mode,
            "right": None if item.gold is None and item.tests is None else False,
            "answer": None,
            "where": None,
            "why": f"not asked: {why}",
            "finished": False,
            "generation_tokens": [],
            "full_tokens": [],
        }


def wasted(result: Result, stats: Stats) -> int:
    """Tokens of finished target steps that are not in the answer. In plain decoding every step is
    in the answer.
    """
    ours = sum(len(step.tokens) for step in result.steps if step.author.value == "target")
    return stats.target_tokens - ours


def versions() -> dict[str, str]:
    """What computed the results."""
    found = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["threads"] = str(torch.get_num_threads())
    return found
