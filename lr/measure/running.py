"""One evaluation: problems in, graded results out. Each result goes to disk at once,
and a second start resumes with the missing ones.

Modes ar, sd, lr and lr+sd are those of the official tool. Mode draft is the draft
alone, the row "draft" of Table 1 (arXiv 2506.19830); in mode specreason the target
scores the draft's steps (`variants/specreason.py`). Protocol `acceptance` is how the
paper measures acceptance: at every position draft and target write one step each, the
verifier judges them, and the accepted one continues the chain. That is the paper's
schedule with a window of one pair.

The loop prints nothing: it yields each result that it has written. A second thread
grades, so comparing answers or running programs does not delay generation; a problem's
clock stops at its last token. Read next: `store.py`, which keeps the results, and
`report.py`, which reads them."""

from __future__ import annotations

import platform
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lr.engine.answer import Answer
from lr.errors import ContextError
from lr.measure.datasets import Item, ask
from lr.measure.grading import Grade, Grader
from lr.measure.report import AnswerRecord
from lr.measure.store import AnswerKey, Store
from lr.measure.verifier_eval import PairRecorder
from lr.options import LOOKAHEAD, GenerateOptions
from lr.reasoner import Reasoner
from lr.result import Result
from lr.spec.variant import Variant
from lr.tiny.names import speaks_tiny
from lr.trace import Trace, failures
from lr.types import Finish, Role, require
from lr.variants.loading import load_variant
from lr.watch.trace.file import trace_lines
from lr.watch.trace.replay import trace_of

MODES = ("ar", "sd", "lr", "lr+sd", "draft", "specreason")
QWEN3 = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
R1_DISTILL = QWEN3 | {"top_k": 0}
FAMILIES = {"qwen3": QWEN3, "deepseek-r1": R1_DISTILL, "r1-distill": R1_DISTILL}
PACKAGES = ("lookahead-reasoning", "torch", "transformers", "math-verify")
WARM_UP = 16  # Tokens.


def engine_options(
    mode: str, protocol: str, options: GenerateOptions
) -> GenerateOptions:
    """The engine's settings for a mode. Raises `SettingError` if mode and protocol do
    not fit."""
    require(mode in MODES, "mode", mode, f"one of {', '.join(MODES)}")
    if protocol == "acceptance":
        judged = f"'generate': mode {mode!r} judges no steps; use mode lr"
        require(mode in LOOKAHEAD, "protocol", protocol, judged)
        options = replace(options, schedule="paper", depth=1, width=1)
    if mode == "specreason":
        return replace(options, mode="lr", schedule="sync", depth=1, width=1)
    return replace(options, mode="ar" if mode == "draft" else mode)  # type: ignore[arg-type]


def variant_of(
    mode: str, reasoner: Reasoner, named: str | None = None
) -> Variant | None:
    """The variant `named`, or else the one that the mode implies, if any."""
    named = "specreason" if named is None and mode == "specreason" else named
    return None if named is None else load_variant(named, reasoner)


def family_sampling(name: str) -> dict[str, float | int]:
    """How to sample a checkpoint without its own settings, by the family in its name,
    if known."""
    known = (sampling for part, sampling in FAMILIES.items() if part in name.lower())
    return dict(next(known, {}))


Waiting = tuple[AnswerKey, Answer, dict[str, Any] | None, Future[Grade]]
"""A complete answer that is not written yet: its key, the answer, pairs (if kept) and
grade."""


@dataclass
class Evaluation:
    """Answers problems into a store. Iterate over `run`; leaving it early closes
    everything and loses no complete answer.

    All answers have the same `options`, except for the sample. `total_tokens` bounds
    prompt and answer together. `pairs` keeps every judged pair in pairs/; `traces`
    keeps the trace of every answer in traces/, with all events or (`details` False)
    those that statistics need. `rescued`: answers that were complete but not graded
    when the run was interrupted: written, not yielded."""

    reasoner: Reasoner
    store: Store
    grader: Grader
    items: Sequence[Item]
    mode: str
    options: GenerateOptions
    samples: int = 1
    concurrency: int = 1
    total_tokens: int | None = None
    variant: Variant | None = None
    pairs: bool = False
    traces: bool = False
    details: bool = True

    def __post_init__(self) -> None:
        self.item = {item.number: item for item in self.items}
        # question by question: samples share their prompt
        self.keys = [
            AnswerKey(number, n) for number in self.item for n in range(self.samples)
        ]
        finished = self.store.done()
        self.missing = [key for key in self.keys if key not in finished]
        self.rescued: list[AnswerRecord] = []
        self.session = {
            "started": time.time(),
            "problems": 0,
            "tokens": 0,
            "seconds": 0.0,
        }

    def run(self) -> Generator[AnswerRecord, None, None]:
        """Answer, grade, write and yield what is missing. Raises `StorageError` on a
        full disk."""
        session = f"session-{len(list(self.store.path.glob('session-*.json')))}.json"
        variant, asked = self.variant, dict[Answer, AnswerKey]()
        recorder: PairRecorder | None = None
        if self.pairs:
            variant = variant or Variant()
            inner = variant.verifier or self.reasoner.verifier
            assert not isinstance(inner, str), "modes that judge have their verifier"
            recorder = PairRecorder(inner)
            variant = replace(variant, verifier=recorder)
        for key in self.missing:
            item = self.item[key.number]
            try:
                asked[self._request(item, key.sample, variant)] = key
            except (
                ContextError
            ) as error:  # counts as wrong if the problem can be graded
                graded = item.gradable
                wrong = Grade(
                    False if graded else None, None, None, f"not asked: {error}"
                )
                record = self._record(
                    key, Result(item.question, self.mode, (), (), Trace()), wrong
                )
                self.store.write(key.file, record)
                yield record
        self._warm_up(list(asked))
        started = time.perf_counter()
        with ThreadPoolExecutor(1, thread_name_prefix="grading") as pool:
            waiting = deque[Waiting]()  # graded in this order
            try:
                for one, _ in self.reasoner.engine.serve(list(asked), self.concurrency):
                    if not one.done:
                        continue
                    key, result = asked[one], one.result
                    item = self.item[key.number]
                    pairs = (
                        None if recorder is None else recorder.take(result.prompt, item)
                    )
                    grade = pool.submit(self.grader.grade, item, result.text)
                    waiting.append((key, one, pairs, grade))
                    self.session["tokens"] += len(result.tokens)
                    self.session["problems"] += 1
                    self.session["seconds"] = time.perf_counter() - started
                    while waiting and waiting[0][-1].done():
                        yield self._keep(session, waiting)
                while waiting:
                    yield self._keep(session, waiting)
            except BaseException:  # leaving the pool waits for these grades anyway
                while waiting:
                    try:
                        self.rescued.append(self._keep(session, waiting))
                    except Exception:  # the next run answers it again
                        waiting.popleft()
                raise

    def _request(self, item: Item, sample: int, variant: Variant | None) -> Answer:
        """One answer, not begun. Raises `ContextError` if the prompt does not fit."""
        codec = self.reasoner.codec
        question = ask(item, bare=speaks_tiny(codec))
        options = replace(self.options, sample=sample)
        if (total := self.total_tokens) is not None:
            thinks = options.enable_thinking
            prompt = len(
                codec.chat(question, system=options.system, enable_thinking=thinks)
            )
            left = total - prompt
            if left < 1:
                allowed = (
                    f"max_tokens_len allows {total} for prompt and answer together"
                )
                raise ContextError(f"the prompt has {prompt} tokens, and {allowed}.")
            options = replace(options, max_tokens=min(left, options.max_tokens or left))
        detailed = self.traces and self.details
        return self.reasoner.run(question, options, variant=variant, detailed=detailed)

    def _warm_up(self, asked: Sequence[Answer]) -> None:
        """Write a few tokens of the first answer and discard them: the first forwards
        are slow, because they set things up and start the draft's process."""
        for one in asked[:1]:
            options = replace(
                one.options, max_tokens=min(WARM_UP, one.limits.max_tokens)
            )
            again = self.reasoner.run(one.question, options, variant=self.variant)
            if (
                one.engine.num_blocks is None
            ):  # with the cache that the answers will need
                at_once = min(self.concurrency, len(asked))
                again.blocks = at_once * max(run.blocks for run in asked)
            again.finish()

    def _keep(self, session: str, waiting: deque[Waiting]) -> AnswerRecord:
        """Write all files of the first waiting answer, the result last, since
        `Store.done` looks for that. After a Ctrl-C in here the answer still waits and
        can be written again."""
        key, asked, pairs, grading = waiting[0]
        record = self._record(key, asked.result, grading.result())
        if self.traces:
            trace = trace_of(asked)
            self.store.write_lines(
                f"traces/{key.file}l", trace_lines(trace.header, trace.records)
            )
        if pairs is not None:
            self.store.write(f"pairs/{key.file}", pairs)
        self.store.write(key.file, record)
        self.store.write(session, self.session)
        waiting.popleft()
        return record

    def _record(self, key: AnswerKey, result: Result, grade: Grade) -> AnswerRecord:
        """One result: the official tool's fields under their names, then ours."""
        item, stats = self.item[key.number], result.stats
        decode = self.reasoner.codec.tokenizer.decode
        prompt, unjudged = (
            decode(list(result.prompt)),
            failures(e for _, e in result.trace.events),
        )
        ours = sum(
            len(step.tokens) for step in result.steps if step.author is Role.TARGET
        )
        wasted = max(
            0, stats.target_tokens - ours
        )  # of finished steps that are not in the answer
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
            "mode": self.mode,
            **asdict(grade),
            "finished": result.finished,
            "cut_steps": sum(step.finish is Finish.LENGTH for step in result.steps),
            "stats": asdict(stats) | {"wasted_target_tokens": wasted},
            "unjudged": dict(Counter(unjudged).most_common(5)),
            "steps": [[step.origin.value, len(step.tokens)] for step in result.steps],
            "generation_tokens": list(result.tokens),
            "full_tokens": [*result.prompt, *result.tokens],
        }


def run_head(tool: str, settings: dict[str, Any], devices: list[str]) -> dict[str, Any]:
    """The content of run.json: the settings, the software and the devices."""
    versions = {"python": platform.python_version(), "system": platform.platform()}
    versions["machine"] = platform.machine()
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    versions["threads"] = str(torch.get_num_threads())
    return {
        "tool": tool,
        "settings": settings,
        "versions": versions,
        "devices": devices,
    }
