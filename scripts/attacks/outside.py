"""Attacks from outside: broken files and flags, runs that are killed or badly served,
hostile programs.

An attack is made once, with a folder to write to, and is called once per case with its
randomness. A call raises what it finds and returns, in a word or two, what kind of case
it was.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from endpoint_kit import IDS, serving
from misbehaviour import FINAL, WAYS
from reasoner_kit import write_checkpoint
from test_endpoint_judge import pair
from test_misbehaviour import judge_at, judge_model
from test_sandbox import ATTACKS, LIMITED
from test_signals import alive, gone, started

from lr.engine.engine import recommended_sampling
from lr.errors import LRError, SettingError
from lr.measure.datasets import load_items
from lr.measure.endpoint.client import Refused
from lr.measure.sandbox import Sandbox, SandboxLimits, open_sandbox
from lr.model.codec import Codec
from lr.model.generation_config import unheeded
from lr.model.weights import load_model
from lr.watch.trace.file import read_trace

ROOT = Path(__file__).resolve().parents[2]
SLOW = 30.0
"""Seconds that nothing may take, on a machine that does other things too."""
EVIL: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    1 << 31,
    1 << 63,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "0",
    "x" * 5000,
    "\ud800",
    "\x00",
    "../../etc/passwd",
    "a" * 300 + ".safetensors",
    [],
    [[]],
    {},
    {"a": {}},
    [0] * 1000,
    {"type": "yarn"},
    ["full_attention", 7],
    "qwen3",
    "<|im_end|>",
)


@contextlib.contextmanager
def soon(seconds: float = SLOW) -> Iterator[None]:
    """What hangs is a finding."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every entry of a JSON value, few of long lists."""
    found = [path] if path else []
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())[:400]
    elif isinstance(value, list):
        entries = list(enumerate(value[:3]))
    for key, entry in entries:
        found += places(entry, (*path, key))
    return found


def broken_json(rng: Random, value: Any) -> bytes:
    """A JSON file with something wrong in it: a value, a key, or its bytes."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2])):
        path = rng.choice(places(value) or [()])
        if not path:
            return b"null"
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        what = rng.random()
        if what < 0.75:
            parent[path[-1]] = copy.deepcopy(rng.choice(EVIL))
        elif isinstance(parent, dict) and what < 0.9:
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[rng.choice(["", "a" * 400, "\x00", "rope_theta", "type"])] = (
                parent.pop(path[-1])
            )
        else:
            parent.append(copy.deepcopy(rng.choice(EVIL)))
    data = bytearray(json.dumps(value).encode())
    how = rng.random()
    if how < 0.05:
        data = bytearray(b"[" * 100_000)
    elif how < 0.1:
        del data[rng.randrange(len(data)) :]
    elif how < 0.2 and data:
        data[rng.randrange(len(data))] = rng.randrange(256)
    elif how < 0.23:
        data = bytearray(b"\xef\xbb\xbf") + data
    return bytes(data)


class files:
    """Whatever is wrong with a file or a flag: one sentence, or none if nothing is
    wrong after all. Never a traceback, never a hang, and nothing written where flags
    are refused."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.good = folder, write_checkpoint(folder / "good", seed=1)
        self.kinds: tuple[Callable[[Random], None], ...] = (
            *(self.checkpoint, self.checkpoint, self.weights, self.data, self.data),
            *(self.flags, self.trace, self.evaluation),
        )
        self.lines = [
            {"problem": "1 + 1?", "answer": 2, "id": 7},
            {"question": "How many?", "answer": "She has 3.\n#### 3"},
            {"prompt": "def f():", "test": "def check(f): assert f() == 1", "entry_point": "f"},
            {"question_content": "add", "starter_code": "", "metadata": '{"func_name": "f"}',
             "public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]',
             "private_test_cases": "eJxrYJmqwQAABWoBhw=="},
            {"question": "Which?", "choices": ["a", "b", "c"], "answer": "B"},
            {"turns": ["Write.", "Again."], "question_id": 81},
        ]  # fmt: skip
        source = "lr generate --mode lr --max_tokens 30 --trace".split()
        self.traced = folder / "trace.jsonl"
        lr([*source[1:], str(self.traced)])
        self.trace_lines = self.traced.read_text("utf-8").splitlines()

    def close(self) -> None:
        pass

    def __call__(self, rng: Random) -> str:
        kind = rng.choice(self.kinds)
        with soon(), contextlib.suppress(LRError):
            kind(rng)
        return kind.__name__

    def broken(self, name: str, data: bytes) -> Path:
        """A checkpoint of which one file is another."""
        made = self.folder / "broken"
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(self.good, made)
        (made / name).write_bytes(data)
        return made

    def checkpoint(self, rng: Random) -> None:
        name = rng.choice(["config.json"] * 3 + ["generation_config.json", "tokenizer_config.json",
                           "tokenizer.json"])  # fmt: skip
        made = self.broken(
            name, broken_json(rng, json.loads((self.good / name).read_text("utf-8")))
        )
        if name == "config.json":
            load_model(made)
        codec = Codec.load(made)
        codec.chat("How many coins?")
        unheeded(codec)
        recommended_sampling(codec)

    def weights(self, rng: Random) -> None:
        data = bytearray((self.good / "model.safetensors").read_bytes())
        if rng.random() < 0.4:
            index = {
                "weight_map": {
                    "model.norm.weight": "a.safetensors",
                    "lm_head.weight": "b",
                }
            }
            made = self.broken("model.safetensors.index.json", broken_json(rng, index))
            (made / "model.safetensors").unlink()
        else:
            if rng.random() < 0.3:
                del data[rng.randrange(len(data)) :]
            else:
                data[rng.randrange(1200)] = rng.randrange(256)
            made = self.broken("model.safetensors", bytes(data))
        load_model(made)

    def data(self, rng: Random) -> None:
        lines = [json.dumps(line).encode() for line in self.lines]
        lines[rng.randrange(len(lines))] = broken_json(rng, rng.choice(self.lines))
        path = self.folder / "data.jsonl"
        path.write_bytes(b"\n".join(lines))
        load_items(str(path))

    def evaluation(self, rng: Random) -> None:
        """A whole run on lines of which one is broken: it is refused and leaves
        nothing, or the line is answered like the others."""
        broken = rng.choice([line for line in self.lines if "test" not in str(line)])
        lines = [b'{"problem": "1 + 1?", "answer": 2}', broken_json(rng, broken)]
        path, output = self.folder / "data.jsonl", self.folder / "output"
        path.write_bytes(b"\n".join(lines))
        shutil.rmtree(output, ignore_errors=True)
        words = [
            "run",
            "--mode",
            "ar",
            "--dataset",
            str(path),
            "--max_tokens_len",
            "90",
        ]
        code, said = lr([*words, "--output", str(output)])
        assert code in (0, 2) and said and output.exists() is (code == 0), (code, said)

    def trace(self, rng: Random) -> None:
        lines = [line.encode() for line in self.trace_lines]
        place = rng.randrange(len(lines))
        lines[place] = broken_json(rng, json.loads(lines[place]))
        path = self.folder / "broken.jsonl"
        path.write_bytes(b"\n".join(lines))
        read_trace(path)

    def flags(self, rng: Random) -> None:
        """Data sets that are not there, impossible values: exit code 2, no folder, no
        traceback."""
        value = rng.choice(
            [
                "",
                "nan",
                "inf",
                "-1",
                "0",
                "1e400",
                str(1 << 70),
                "x" * 300,
                "\x01",
                "a/b",
            ]
        )
        flag = rng.choice(
            ["dataset", "max_depth", "width", "temperature", "top_p", "seed", "max_tokens_len",
             "draft_model", "model", "verifier", "n_samples", "concurrency", "num_blocks", "dtype",
             "start_qid", "end_qid", "max_step_tokens", "num_speculative_tokens", "judge_port"]
        )  # fmt: skip
        output = self.folder / "output"
        shutil.rmtree(output, ignore_errors=True)
        fixed = ["--mode", "ar", "--dataset", "tiny:1", "--max_tokens_len", "90"]
        code, said = lr(["run", *fixed, "--output", str(output), f"--{flag}={value}"])
        assert code in (0, 2), (flag, value, code)
        assert code == 0 or (said and not output.exists()), (flag, value, said)


def lr(words: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a command, run in this process."""
    from lr.commands.cli import main

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
    return code, said.getvalue()


class faults:
    """Runs that are killed, told to stop, hung up on, that fill a disk, or whose judge
    misbehaves. They end soon, say one thing, leave nothing running; killed ones go on
    and come to the same."""

    how = "run --dataset tiny:3 --mode lr --temperature 0.6 --max_tokens_len 160 --seed 3".split()

    def __init__(self, folder: Path) -> None:
        self.folder, self.cases = folder, 0
        self.seconds: dict[str, float] = {}
        self.answers: dict[str, list[int]] = {}
        self.program: subprocess.Popen[str] | None = None
        for number in (signal.SIGINT, signal.SIGHUP):
            # what a background job ignores is ignored by the programs that it starts
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def close(self) -> None:
        if self.program is not None:  # Ctrl-C may have left it alone
            self.program.kill()

    def start(self, driver: str, output: Path, *more: str) -> subprocess.Popen[str]:
        self.program = started(
            *self.how, "--driver", driver, "--output", str(output), *more
        )
        return self.program

    def __call__(self, rng: Random) -> str:
        self.cases += 1
        kinds = (self.killed, self.stopped, self.server, self.full, self.part)
        return rng.choices(kinds, [4, 2, 3, 1, 1])[0](rng)

    def lasts(self, driver: str) -> float:
        """Seconds of a whole run with this driver, from the start of its interpreter.
        Measured once, so that kills come at all moments of a run and none waits for its
        end."""
        if driver not in self.seconds:
            output = self.folder / f"whole {driver}"
            program = self.start(driver, output)
            began = time.monotonic()
            _, said = program.communicate(timeout=4 * SLOW)
            assert program.returncode == 0, said
            self.seconds[driver] = time.monotonic() - began
            self.answers = self.answers or answers_in(output)
            assert len(self.answers) == 3 and answers_in(output) == self.answers
        return self.seconds[driver]

    def begun(self, rng: Random, driver: str, output: Path) -> subprocess.Popen[str]:
        """A run that has been going for a random part of its time."""
        share, whole = rng.random(), self.lasts(driver)
        program = self.start(driver, output)
        time.sleep(0.05 + share * whole)
        return program

    def killed(self, rng: Random) -> str:
        """Killed, now and then again while it goes on; then it comes to the same
        answers."""
        driver = rng.choice(["lockstep", "overlapped"])
        output, kills = self.folder / f"killed{self.cases}", 0
        for _ in range(rng.choice([1, 1, 1, 2])):
            program = self.begun(rng, driver, output)
            program.kill()
            _, said = program.communicate(timeout=SLOW)
            assert program.returncode in (0, -signal.SIGKILL), said
            kills += program.returncode != 0
            assert gone(program.pid), "something is left"
        code, said = lr([*self.how, "--driver", driver, "--output", str(output)])
        assert code == 0, said
        assert answers_in(output) == self.answers, "the answers are others after a kill"
        shutil.rmtree(output)
        return ("killed too late", "killed", "killed twice")[kills]

    def stopped(self, rng: Random) -> str:
        output = self.folder / f"stopped{self.cases}"
        program = self.begun(rng, rng.choice(["lockstep", "overlapped"]), output)
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        program.send_signal(number)
        _, said = program.communicate(timeout=SLOW)
        ended, there = program.returncode, answers_in(output)
        # the system's own way, before our handlers are there and after they are gone
        assert ended in (0, 128 + number, -number), (number, ended, said)
        assert "Traceback" not in said, said
        assert gone(program.pid), "something is left"
        heard = ended == 128 + number
        assert heard or (there or self.answers) == self.answers, "half of it is there"
        shutil.rmtree(output, ignore_errors=True)
        return "stopped" if heard else "stopped before or after"

    def part(self, rng: Random) -> str:
        """A process of the run, the draft's or a rank of the target, is killed: one
        sentence, and nothing is left."""
        output, ranks = self.folder / f"part{self.cases}", rng.random() < 0.5
        more = ["--tensor_parallel", "2"] if ranks else []
        program = self.start("lockstep" if ranks else "overlapped", output, *more)
        others: list[int] = []
        while program.poll() is None and not others:
            others = spawned(program.pid)
            time.sleep(0.05)
        time.sleep(rng.choice([0, 0.5, 1, 2, 3]))
        for one in others[:1]:
            with contextlib.suppress(OSError):  # the run may be over
                os.kill(one, signal.SIGKILL)
        _, said = program.communicate(timeout=4 * SLOW)
        assert program.returncode in (0, 2) and "Traceback" not in said, (
            program.returncode,
            said,
        )
        assert program.returncode == 0 or said.count("error: ") == 1, said
        assert gone(program.pid), "something is left"
        shutil.rmtree(output, ignore_errors=True)
        when = "killed" if program.returncode == 2 else "killed too late"
        return f"{'rank' if ranks else 'worker'} {when}"

    def server(self, rng: Random) -> str:
        name = rng.choice([*WAYS, *FINAL])
        began = time.monotonic()
        with serving(IDS) as server:
            judge = judge_at(judge_model(server), "reject", timeout=0.5, budget=1.0)
            server.misbehave = WAYS.get(name) or FINAL[name]
            try:
                verdicts = [judge.judge([pair("x", f"y{n}")])[0] for n in range(6)]
                assert name in WAYS and all(verdict.failed for verdict in verdicts), (
                    name
                )
            except Refused:
                assert name in FINAL, name
        assert time.monotonic() - began < SLOW, name
        return "server"

    def full(self, rng: Random) -> str:
        words = ["generate", "--mode", rng.choice(["ar", "lr"]), "--max_tokens", "20"]
        code, said = lr([*words, "--trace", "/dev/full"])
        assert code == 2 and "Traceback" not in said, (code, said)
        return "full disk"


def spawned(session: int) -> list[int]:
    """The processes that a run has started, for its draft or for ranks of its
    target."""
    found = []
    for one in alive(session):
        with contextlib.suppress(OSError):
            if "spawn_main" in Path(f"/proc/{one}/cmdline").read_text("utf-8"):
                found.append(int(one))
    return found


def answers_in(folder: Path) -> dict[str, list[int]]:
    """The tokens of every answer of a run."""
    found = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in folder.glob("[0-9]*.json")
    }
    return {name: record["generation_tokens"] for name, record in found.items()}


FRAGMENTS = (
    "import os, sys, ctypes, socket, threading, signal, resource",
    "libc = ctypes.CDLL(None)",
    "os.makedirs('/'.join('d' * 1 for _ in range(900)))",
    "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
    "open('/box/' + 'y' * 200, 'wb').write(bytes(10_000_000))",
    "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "libc.shmget(0, 1 << 20, 0o1600) >= 0 and print('made shared memory')",
    "libc.msgget(0, 0o1600) >= 0 and print('made a queue')",
    "libc.semget(0, 1, 0o1600) >= 0 and print('made a semaphore')",
    "[os.close(n) for n in range(3, 64)]",
    "threading.Thread(target=lambda: open({outside!r}, 'w')).start()",
    "os.symlink('/', 'root'); os.listdir('root')",
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "os.setsid()",
    "libc.syscall(101, 0, 0, 0, 0)",
    "open('/proc/self/mem', 'rb').read(1)",
    "os.execv(sys.executable, [sys.executable, '-c', 'open({outside!r}, chr(119))'])",
    "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "while True: os.write(1, b'x' * 65536)",
    "x = [bytearray(1 << 24) for _ in range(999)]",
)
"""What a hostile program may be made of."""


class sandbox:
    """Hostile programs: none writes, reads or signals outside, none outlives its time,
    none leaves anything behind, and a right program that comes after it is right."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outside = folder, folder / "outside"
        self.precious = folder / "precious"
        self.precious.write_text("kept", "utf-8")
        limits = SandboxLimits(seconds=2, memory_mb=400)
        try:
            self.box, self.contained = open_sandbox(limits), True
        except SettingError:  # no bubblewrap here: what its limits alone must stop
            self.box, self.contained = open_sandbox(limits, unsafe=True), False
        self.patient = Sandbox(self.box.bwrap, SandboxLimits(seconds=60, memory_mb=400))

    def close(self) -> None:
        pass

    def __call__(self, rng: Random) -> str:
        values = {
            "outside": str(self.outside),
            "precious": str(self.precious),
            "pid": os.getpid(),
        }
        known = rng.random() < 0.5
        if known:
            programs = ATTACKS if self.contained else LIMITED
            source = programs[rng.choice(list(programs))]
        else:
            lines = rng.choices(FRAGMENTS[2:], k=rng.randint(1, 4))
            if not self.contained:
                lines = [
                    line for line in lines if not any(word in line for word in OUTSIDE)
                ]
            tried = (f"try:\n    {line.replace(chr(10), chr(10) + '    ')}\nexcept Exception: pass"
                     for line in lines)  # fmt: skip
            source = "\n".join([FRAGMENTS[0], FRAGMENTS[1], *tried])
        before, segments = leftovers(), shared()
        began = time.monotonic()
        ran = self.box.run(source.format(**values) if "{" in source else source)
        assert time.monotonic() - began < SLOW
        assert "made " not in ran.output, ran.output[:200]
        assert not self.outside.exists() and self.precious.read_text("utf-8") == "kept"
        assert leftovers() <= before, "a folder was left"
        assert shared() == segments, "shared memory was left"
        assert self.patient.run("print('right')").output == "right\n"
        kind = "known" if known else "mixed"
        return kind if self.contained else f"{kind}, without bubblewrap"


OUTSIDE = ("{outside", "/box", "root", "setsid", "SIGTERM")
"""Parts of programs that only bubblewrap contains."""


def leftovers() -> set[str]:
    """Folders of programs that were not removed."""
    return {one.name for one in Path(tempfile.gettempdir()).glob("lr-code-*")}


def shared() -> str:
    """System V memory, semaphores and queues of this machine."""
    kinds = (Path("/proc/sysvipc", kind) for kind in ("shm", "sem", "msg"))
    return "".join(kind.read_text("utf-8") for kind in kinds if kind.exists())
