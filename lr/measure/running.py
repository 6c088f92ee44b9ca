"""One evaluation: problems in, graded results out. Each result goes to disk at once,
and a second start resumes with the missing ones.

Modes ar, sd, lr and lr+sd are those of the official tool. Mode draft is the draft
alone, a row of Table 1 (arXiv 2506.19830). With protocol `acceptance` draft and target
write one step each at every position, the verifier judges them, and the accepted one
continues the chain: the paper's schedule with a window of one pair.

The loop prints nothing: it yields each result that it has written. An answer's clock
stops at its last token, before it is graded. Read next: `store.py`, which keeps the
results, and `report.py`, which reads them."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lr import __version__
from lr.engine.answer import Answer
from lr.errors import ContextError
from lr.measure.datasets import Item, ask
from lr.measure.grading import Grade, Grader
from lr.measure.machine import conditions
from lr.measure.report import AnswerRecord
from lr.measure.store import AnswerKey, Store
from lr.measure.verifier_eval import PairRecorder, pair_lines
from lr.model.files import resolve
from lr.options import GenerateOptions
from lr.reasoner import Reasoner
from lr.registry import Checkpoint
from lr.result import Result
from lr.spec.token_sd import Drafter, DrafterSetup
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires
from lr.tiny.names import speaks_tiny
from lr.trace import Trace, failures
from lr.types import Finish, Role
from lr.watch.trace.file import trace_lines, trace_of

WARM_UP_TOKENS = 16
SMALL_FILE = 32 << 20  # Bytes of a file that is read to identify it.
LOGPROBS = Requires.TARGET_LOGPROBS | Requires.DRAFT_LOGPROBS  # that pairs keep
CODE_AND_WEIGHTS = {".py", ".json", ".jinja", ".txt", ".model", ".safetensors"}


@dataclass
class Evaluation:
    """Answers problems in one way, into a store. Call `warm_up` where time counts, then
    iterate over `run`; leaving it early closes everything, and what was yielded is on
    disk.

    All answers have the same `options`, except for the sample. `draft_alone`: the
    reasoner's target is the draft. `total_tokens` bounds prompt and answer together.
    `save_pairs` keeps every judged pair in pairs/, with what target and draft say of it,
    `save_traces` the trace of every answer, with all events, in traces/.
    """

    reasoner: Reasoner
    store: Store
    grader: Grader
    items: Sequence[Item]
    options: GenerateOptions
    variant: Variant = field(default_factory=Variant)
    samples: Sequence[int] = (0,)
    concurrency: int = 1
    total_tokens: int | None = None
    draft_alone: bool = False
    save_pairs: bool = False
    save_traces: bool = False

    def __post_init__(self) -> None:
        self.item_of = {item.number: item for item in self.items}
        self.keys = [
            AnswerKey(number, sample)
            for number in self.item_of
            for sample in self.samples
        ]
        done = self.store.done()
        self.missing = [key for key in self.keys if key not in done]
        self.recorder: PairRecorder | None = None
        if self.save_pairs:
            verifier = self.variant.verifier or self.reasoner.verifier
            self.recorder = PairRecorder(verifier, LOGPROBS)

    def run(
        self, keys: Collection[AnswerKey] | None = None
    ) -> Generator[AnswerRecord, None, None]:
        """Answer, grade, write and yield what is missing, of these keys alone if they
        are given. Raises `StorageError` on a full disk."""
        # 1. Begin the answers; a prompt that does not fit is answered wrongly.
        key_of = dict[Answer, AnswerKey]()
        for key in self.missing:
            if keys is not None and key not in keys:
                continue
            try:
                key_of[self._begin(key)] = key
            except ContextError as error:
                record = self._too_long(key, error)
                self.store.write(key.file, record)
                yield record
        # 2. Write each answer to disk as soon as it is complete.
        for answer, _ in self.reasoner.engine.serve(list(key_of), self.concurrency):
            if answer.done:
                yield self._keep(key_of[answer], answer)

    def _begin(self, key: AnswerKey) -> Answer:
        """One answer, not begun. Raises `ContextError` if the prompt does not fit."""
        codec = self.reasoner.codec
        question = ask(self.item_of[key.number], bare=speaks_tiny(codec))
        options = replace(self.options, sample=key.sample)
        if self.total_tokens is not None:
            prompt = codec.chat(
                question,
                system=options.system,
                enable_thinking=options.enable_thinking,
            )
            left = self.total_tokens - len(prompt)
            if left < 1:
                raise ContextError(
                    f"the prompt has {len(prompt)} tokens, and max_tokens_len allows "
                    f"{self.total_tokens} for prompt and answer together."
                )
            options = replace(options, max_tokens=min(left, options.max_tokens or left))
        variant = self.variant
        if self.recorder is not None:
            variant = replace(variant, verifier=self.recorder)
        return self.reasoner.run(
            question, options, variant=variant, detailed=self.save_traces
        )

    def warm_up(self) -> bool:
        """Write a few tokens of the first answer and discard them, with the cache that
        the answers will need: the first forwards set things up and start the draft.
        Whether the variant's drafter remembers them: then the caller replaces it."""
        answers = []
        for number in self.item_of:
            with suppress(ContextError):
                answers.append(self._begin(AnswerKey(number)))
        if not answers:
            return False
        # 1. The first question, for fewer tokens, with a drafter that is looked at.
        first = answers[0].question
        drafters: list[Drafter] = []
        variant = first.variant
        if variant.drafter is not None:
            make = variant.drafter

            def make_drafter(setup: DrafterSetup) -> Drafter:
                drafters.append(make(setup))
                return drafters[-1]

            variant = replace(variant, drafter=make_drafter)
        tokens = min(WARM_UP_TOKENS, first.limits.max_tokens)
        limits = replace(first.limits, max_tokens=tokens)
        engine = self.reasoner.engine
        blocks = engine.cache_size(answers, self.concurrency)
        again = replace(first, variant=variant, limits=limits, blocks=blocks)
        # 2. Its answer, which nobody gets.
        for _ in engine.serve([Answer(again)]):
            pass
        if self.recorder is not None:
            self.recorder.seen.clear()
        return any(drafter.memory for drafter in drafters)

    def begin_again(self) -> None:
        """Remove all answers: every one is missing."""
        for key in self.store.done():
            (self.store.path / key.file).unlink()
        self.missing = self.keys

    def _keep(self, key: AnswerKey, answer: Answer) -> AnswerRecord:
        """Write all files of a complete answer, the result last: `Store.done` looks for
        that."""
        item, result = self.item_of[key.number], answer.result
        grade = self.grader.grade(item, result.text)
        if self.save_traces:
            lines = trace_lines(trace_of(answer))
            self.store.write_lines(f"traces/{key.file}l", lines)
        if self.recorder is not None:
            decode = self.reasoner.codec.decode
            pairs = self.recorder.take(result.prompt, item, decode)
            self.store.write_lines(f"pairs/{key.file}l", pair_lines(pairs))
        record = self._record(key, result, grade)
        self.store.write(key.file, record)
        return record

    def _too_long(self, key: AnswerKey, error: ContextError) -> AnswerRecord:
        """The record of a prompt that does not fit: wrong if it can be graded."""
        item = self.item_of[key.number]
        right = False if item.gradable else None
        grade = Grade(right, None, f"not asked: {error}")
        result = Result(item.question, str(self.options.mode), (), (), Trace())
        return self._record(key, result, grade)

    def _record(self, key: AnswerKey, result: Result, grade: Grade) -> AnswerRecord:
        """One result: the official tool's fields under their names, then ours."""
        item, stats = self.item_of[key.number], result.stats
        decode = self.reasoner.codec.tokenizer.decode
        prompt = decode(list(result.prompt))
        by_target = (step for step in result.steps if step.author is Role.TARGET)
        used_target_tokens = sum(len(step.tokens) for step in by_target)
        unjudged = Counter(failures(event for _, event in result.trace.events))
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
            # a variant may choose another mode than the run
            "mode": "draft" if self.draft_alone else result.mode,
            **asdict(grade),
            "finished": result.finished,
            "cut_steps": sum(step.finish is Finish.LENGTH for step in result.steps),
            "stats": asdict(stats)
            | {
                # of finished target steps that are not in the answer
                "wasted_target_tokens": max(0, stats.target_tokens - used_target_tokens)
            },
            "unjudged": dict(unjudged.most_common(5)),
            "steps": [[step.origin.value, len(step.tokens)] for step in result.steps],
            "generation_tokens": list(result.tokens),
            "full_tokens": [*result.prompt, *result.tokens],
        }


def identified(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, with the version of the package and the content of the
    files that they name: checkpoints, a variant's or verifier's FILE.py. If one of them
    changes, it is another run. Raises `CheckpointError` for a missing checkpoint."""
    contents = {}
    # a judge on a server, and an encoder, are not in the layout of a checkpoint
    verifier = str(settings.get("verifier"))
    elsewhere = settings.get("served_judge") or verifier.startswith("embedding")
    for name in ("model", "draft_model", "judge_model", "variant", "verifier"):
        value = str(settings.get(name) or "")
        # the files in FILE.py:NAME(...), judge:0.5@DIRECTORY, fitted:FILE:0.8
        texts = {value, *re.split("[:@(]", value)}
        texts.add(value.partition("(")[0].rpartition(":")[0])
        paths = {text: Path(text) for text in sorted(texts) if text}
        is_model = name.endswith("model") and not (name == "judge_model" and elsewhere)
        if value and is_model and not Checkpoint.parse(value).dummy:
            paths[value] = resolve(value)
        for text, path in paths.items():
            if path.exists():
                contents[f"content of {text}"] = signature(path)
    return {**settings, **contents, "lr": __version__}


def signature(path: Path) -> str:
    """Eight hexadecimal digits that tell contents of a file or a checkpoint's directory
    apart. A large file is not read: its size and time count, or the name that the cache
    of the hub gives to its content."""
    digest = hashlib.blake2b(digest_size=4)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.suffix in CODE_AND_WEIGHTS and file.is_file():
            facts = file.stat()
            if facts.st_size <= SMALL_FILE:
                content = file.read_bytes()
            elif file.is_symlink():
                content = file.resolve().name.encode()
            else:
                content = f"{facts.st_size} {facts.st_mtime_ns}".encode()
            digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def run_head(settings: Mapping[str, Any], devices: Iterable[object]) -> dict[str, Any]:
    """The content of run.json: the settings with the files that they name, the machine
    with its software, and the devices."""
    return {
        "settings": identified(settings),
        "conditions": conditions(),
        "devices": sorted(map(str, {*devices})),
    }
