"""When the draft's worker fails, dies or is no longer wanted: clear errors, no process
left behind, and the next answer works.
"""

import gc
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from toy_kit import (
    ToyDraft,
    Trouble,
    alive,
    ask,
    emitted,
    require_clean,
    toy_engine,
)

from lr.engine.worker import DraftWorker, DraftWorkerError
from lr.errors import CheckpointError, OutOfBlocks, SettingError
from lr.spec.variant import Variant
from lr.types import Role

OVERLAPPED = {"driver": "overlapped"}


def pid(worker):
    assert worker.process is not None
    return worker.process.pid


@pytest.mark.parametrize(
    ("then", "error", "text"),
    [("fill", OutOfBlocks, "blocks"), ("raise", DraftWorkerError, "a bug")],
)
def test_what_the_worker_raises_is_raised_here(then, error, text):
    """As in lockstep; the worker goes on, but this answer is over."""
    worker = DraftWorker(ToyDraft(Trouble(after=5, then=then)), as_thread=True)
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        with pytest.raises(error, match=text):
            ask(engine, **OVERLAPPED).finish()
        require_clean(engine, [Role.TARGET])
        with pytest.raises(error, match=text):  # it begins again, with a new cache
            ask(engine, **OVERLAPPED).finish()


def test_after_a_worker_has_died_the_next_answer_has_a_new_one():
    worker = DraftWorker(ToyDraft(Trouble(after=9)))
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        with pytest.raises(DraftWorkerError, match="exit code 3"):
            ask(engine, **OVERLAPPED).finish()
        require_clean(engine, [Role.TARGET])
        worker.load = ToyDraft()
        assert emitted(ask(engine, **OVERLAPPED))


@pytest.mark.parametrize("error", [CheckpointError("missing"), OSError("missing")])
def test_a_draft_that_cannot_be_loaded_says_why(error):
    def load():
        raise error

    worker = DraftWorker(load, as_thread=True)
    for _ in range(2):
        with pytest.raises((CheckpointError, DraftWorkerError), match="missing"):
            worker.start()


def test_a_worker_without_an_answer_ends_with_its_owner():
    """Closed, dropped, left at exit: gone."""
    worker = DraftWorker(ToyDraft())
    worker.start()
    closed = pid(worker)
    worker.close()
    worker.start()
    dropped = pid(worker)
    del worker
    gc.collect()
    assert not alive(closed)
    assert not alive(dropped)


def test_two_loops_do_not_share_a_worker():
    worker = DraftWorker(ToyDraft(), as_thread=True)
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        steps = iter(ask(engine, **OVERLAPPED))
        next(steps)
        with pytest.raises(SettingError, match="in use"):
            ask(engine, **OVERLAPPED).finish()
        assert list(steps)
        assert emitted(ask(engine, **OVERLAPPED))


def test_the_worker_runs_no_code_of_a_variant():
    variant = Variant(segmenter=lambda token_bytes: None)
    engine = toy_engine(worker=DraftWorker(ToyDraft(), as_thread=True))
    with closing(engine), pytest.raises(SettingError, match="segmenter"):
        ask(engine, variant=variant, **OVERLAPPED).finish()


PROGRAM = """
from toy_kit import ToyDraft, Trouble, ask, toy_engine
from lr.engine.worker import DraftWorker

if __name__ == "__main__":
    worker = DraftWorker(ToyDraft(Trouble(delay=0.2)))
    engine = toy_engine(endless=True, worker=worker)
    for _ in ask(engine, max_tokens=400, driver="overlapped"):
        print(worker.process.pid, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_program_leaves_no_worker_behind(tmp_path):
    """`tests/test_signals.py` has the other ends of a program."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "tests")))
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(program.stdout.readline())  # a step is there
    program.kill()
    program.wait()
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_plain_script_needs_no_guard(tmp_path):
    """The second process does not import the script that asked for it: what stands
    there happens once."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import lr\n"
        "from lr.registry import SAMPLE_QUESTION\n"
        "print('once')\n"
        "reasoner = lr.Reasoner()\n"
        "result = reasoner.generate(SAMPLE_QUESTION, driver='overlapped', max_tokens=20)\n"
        "print(len(result.tokens) > 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "once\nTrue\n"), done.stderr
