"""Time this project beside transformers, llama.cpp and OpenVINO GenAI: plain decoding, n-grams and
a draft model, on the same checkpoints and prompts, one after the other in one run.

    python scripts/peers/speed.py --model DIR --draft_model DIR --dataset gsm8k.jsonl \
        --llama_server PROGRAM --gguf FILE --gguf_draft FILE \
        --python_openvino PYTHON --openvino DIR --openvino_draft DIR --json speed.json

An engine whose files are not given is left out. Each engine answers in a process of its
own (`engine.py`), one at a time, so each has all threads and its own peak of memory: in
every repeat each way loads its models, warms up and answers all questions; another way
begins each time. Greedy. Tokens per second are those after the first.

`to_gguf.py` writes the GGUF files. For OpenVINO, in an environment of their own:
    pip install openvino-genai openvino-tokenizers optimum-intel nncf
    optimum-cli export openvino --model DIR --task text-generation-with-past \
        --weight-format fp16 OUT     # draft: --weight-format int4 --group-size 64 --sym

Options: lr's draft in 4 bits, k 16, confidence 0.7, its n-grams as by default;
llama.cpp `draft-simple` with the same two numbers, `ngram-simple`; transformers' draft
in bfloat16, prompt lookup of 10; OpenVINO 5 tokens ahead, n-grams of 3.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

import torch
import tyro
from safetensors import safe_open

from lr.commands import show
from lr.errors import LRError
from lr.measure.datasets import ask, load_items
from lr.measure.machine import conditions
from lr.measure.store import write_json
from lr.measure.ways import in_turn
from lr.model.codec import Codec
from lr.types import require

WayName: TypeAlias = Literal["plain", "n-grams", "draft"]
WAYS: tuple[WayName, ...] = ("plain", "n-grams", "draft")
AREA = 1 << 30  # bytes that are read to find the memory's speed
PAGES = {"4 KB pages": mmap.MADV_NOHUGEPAGE, "2 MB pages": mmap.MADV_HUGEPAGE}
BITS = {None: 16.0, "int8": 8.0, "int4": 4.5}


class FailedError(Exception):
    """The process of an engine ended, or did not answer."""


def read_speed(pages: int) -> float:
    """Bytes per second that all threads read from memory: the best of five sums."""
    area = mmap.mmap(-1, AREA)
    area.madvise(pages)
    numbers = torch.frombuffer(area, dtype=torch.int64)
    numbers.fill_(1)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - start)
    return AREA / min(seconds)


def numbers_read(folder: Path) -> int:
    """How many weights a pass of one token reads: all but an embedding that is not the
    head too."""
    sizes = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (the file is no mapping)
                sizes[name] = torch.Size(tensors.get_slice(name).get_shape()).numel()
    if "lm_head.weight" in sizes:
        sizes.pop("model.embed_tokens.weight")
    return sum(sizes.values())


@dataclass
class Contender:
    """An engine and a way. Per question and repeat: tokens per second after the first,
    and seconds to the first; per repeat: seconds to load and the peak of memory in
    bytes. `written`: the tokens, by question. `error`: why it failed."""

    engine: str
    way: str
    python: str
    settings: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    version: str = ""
    rates: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    written: dict[int, list[int]] = field(default_factory=dict)
    error: str | None = None

    @contextmanager
    def process(self) -> Iterator[Process]:
        """The engine, started, and ended afterwards."""
        told = json.dumps(self.settings | {"engine": self.engine, "way": self.way})
        script = Path(__file__).with_name("engine.py")
        with tempfile.TemporaryFile("w+") as log:
            child = subprocess.Popen(
                [self.python, str(script), told],
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
            try:
                yield Process(child, log)
            finally:
                with suppress(BrokenPipeError):
                    child.stdin.close()  # type: ignore[union-attr]
                child.wait()

    def answer(self, lines: Sequence[dict[str, Any]]) -> None:
        """Load, warm up on the first line, answer all, and remember."""
        with self.process() as process:
            ready = process.hear()
            self.version = ready["version"]
            process.ask(lines[0])
            for number, line in enumerate(lines):
                facts = process.ask(line)
                written = facts["written"]
                if len(written) < 2:
                    raise FailedError(f"{len(written)} tokens for question {number}")
                seconds = facts["seconds"] - facts["first"]
                self.rates.append((len(written) - 1) / seconds)
                self.firsts.append(facts["first"])
                self.written[number] = written
            self.loads.append(ready["load"])
            self.peaks.append(facts["peak"])


@dataclass(frozen=True)
class Process:
    """The process of an engine, and the file of what else it prints."""

    child: subprocess.Popen[str]
    log: Any

    def hear(self) -> dict[str, Any]:
        """The next line. Raises FailedError with the end of the log."""
        line = self.child.stdout.readline()  # type: ignore[union-attr]
        if not line:
            self.log.seek(0)
            raise FailedError((self.log.read().strip() or "ended")[-300:])
        facts: dict[str, Any] = json.loads(line)
        return facts

    def ask(self, line: dict[str, Any]) -> dict[str, Any]:
        """The answer to a line."""
        with suppress(BrokenPipeError):  # the log says why
            print(json.dumps(line), file=self.child.stdin)
        return self.hear()


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median, least and most."""
    if not values:
        return "-"
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@dataclass(frozen=True)
class Speed:
    """Time this project beside transformers, llama.cpp and OpenVINO GenAI on one pair of
    checkpoints: plain decoding, n-grams, a draft model."""

    model: Path  # The target: a directory in Hugging Face layout.
    draft_model: Path  # The draft, likewise.
    dataset: str  # Where the questions are from; as for lr run.
    weights: Literal["int8", "int4"] | None = None
    """lr's target in 8 or 4 bits; give the peers files of as many. Then transformers is
    left out, which would run in 16 bits. None: bfloat16."""
    llama_server: str | None = None  # The program llama-server of llama.cpp.
    gguf: Path | None = None  # The target for llama.cpp.
    gguf_draft: Path | None = None  # The draft for llama.cpp.
    openvino: Path | None = None  # The target for OpenVINO: a directory.
    openvino_draft: Path | None = None  # The draft for OpenVINO.
    python_openvino: str = sys.executable  # A Python that has openvino-genai.
    python_transformers: str = sys.executable  # A Python that has transformers.
    ways: tuple[WayName, ...] = WAYS
    start_qid: int = 0  # Number of the first question.
    problems: int = 3  # How many questions.
    repeats: int = 2  # How often every way loads and answers them.
    tokens: int = 96  # Longest answer.
    threads: int = 2  # Of each engine.
    json: Path | None = None  # Also write every figure to this file.

    def contenders(self) -> list[Contender]:
        """Every way of every engine that has its files."""
        torch_threads = {"OMP_NUM_THREADS": str(self.threads)}
        ours = {**torch_threads, "THP_MEM_ALLOC_ENABLE": "1"}  # as the command lr does
        here, folders = sys.executable, (self.model, self.draft_model)
        engines: list[tuple[str, str, tuple[Path | None, ...], dict[str, str]]] = [
            ("lr", here, folders, ours)
        ]
        if self.weights is None:
            engines.append(
                ("transformers", self.python_transformers, folders, torch_threads)
            )
        if self.llama_server is not None:
            engines.append(("llama", here, (self.gguf, self.gguf_draft), {}))
        files = (self.openvino, self.openvino_draft)
        engines.append(("openvino", self.python_openvino, files, {}))
        codec = Codec.load(self.model)
        return [
            Contender(
                engine,
                way,
                python,
                {
                    "target": str(target),
                    "draft": str(draft),
                    "weights": self.weights,
                    "threads": self.threads,
                    "program": self.llama_server,
                    "ends": sorted(codec.eos_ids),
                },
                environment,
            )
            for engine, python, (target, draft), environment in engines
            if target is not None
            for way in self.ways
            if way != "draft" or draft is not None
        ]

    def run(self) -> None:
        show.require_at_least(
            self, problems=1, repeats=1, tokens=2, threads=1, start_qid=0
        )
        show.require_files(json=self.json)
        for name in ("model", "draft_model"):
            folder = getattr(self, name)
            require(folder.is_dir(), name, str(folder), "a directory that exists")
        torch.set_num_threads(self.threads)
        out = show.console()
        codec = Codec.load(self.model)
        items = load_items(self.dataset)[self.start_qid :][: self.problems]
        lines = [
            {"question": question, "ids": codec.chat(question), "tokens": self.tokens}
            for question in map(ask, items)
        ]
        facts = conditions()
        out.print(", ".join(f"{name} {value}" for name, value in facts.items()))
        contenders = self.contenders()
        reads: dict[str, list[float]] = {name: [] for name in PAGES}
        with show.progress("ways", self.repeats * len(contenders)) as advance:
            for repeat in range(self.repeats):
                for contender in in_turn(contenders, repeat * len(self.ways)):
                    if contender.error is None:
                        for name, pages in PAGES.items():
                            reads[name].append(read_speed(pages) / 1e9)
                        try:
                            contender.answer(lines)
                        except (FailedError, OSError) as error:
                            contender.error = str(error)
                    advance()
        for name, speeds in reads.items():
            out.print(f"memory is read at {spread(speeds)} GB/s, {name}")
        self.report(contenders, reads, facts)

    def report(
        self,
        contenders: Sequence[Contender],
        reads: dict[str, list[float]],
        facts: dict[str, Any],
    ) -> None:
        """Print the table and the ratios; write the file."""
        out = show.console()
        size = numbers_read(self.model) * BITS[self.weights] / 8 / 1e9  # of a token
        speed = max(median(speeds) for speeds in reads.values())
        rows: list[tuple[object, ...]] = []
        plain = next(c for c in contenders if c.way == self.ways[0]).written
        for one in contenders:
            name = f"{one.engine} {one.version}"
            share = "-"
            if one.way == "plain" and one.rates:
                share = f"{median(one.rates) * size / speed:.0%}"
            memory = f"{max(one.peaks) / 1e9:.1f}" if one.peaks else "-"
            same = sum(plain.get(at) == ids for at, ids in one.written.items())
            rows.append(
                (
                    name,
                    one.way,
                    spread(one.rates),
                    share,
                    spread(one.firsts, 2),
                    memory,
                    spread(one.loads),
                    f"{same} of {len(one.written)}",
                )
            )
        columns = (
            *("engine", "way", "tokens/s", "of reading", "first token, s"),
            *("peak, GB", "load, s", f"as lr, {self.ways[0]}"),
        )
        title = f"{size:.2f} GB a token; median (least to most)"
        out.print(show.table(columns, rows, text=2, title=title))
        for one in contenders:
            if one.error is not None:
                out.print(f"{one.engine}, {one.way}, failed: {one.error}")
        ratios = {}
        for way in self.ways:
            rates = {
                one.engine: median(one.rates)
                for one in contenders
                if one.way == way and one.rates and one.error is None
            }
            ours = rates.pop("lr", None)
            if ours and rates:
                best = max(rates, key=rates.__getitem__)
                ratios[way] = ours / rates[best]
                out.print(f"{way}: lr / {best}, the best peer: {ratios[way]:.2f}")
        hidden = ("settings", "environment", "python")
        content = {
            "conditions": facts,
            "GB a token": size,
            "GB/s": reads,
            "ratios": ratios,
            "ways": [
                {name: value for name, value in vars(one).items() if name not in hidden}
                for one in contenders
            ],
        }
        write_json(content, self.json)


def main(words: Sequence[str] | None = None) -> int:
    """Read the flags and time; what the user can mend is one message."""
    command = tyro.cli(
        Speed, args=words, use_underscores=True, config=(tyro.conf.OmitArgPrefixes,)
    )
    try:
        command.run()
    except LRError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
