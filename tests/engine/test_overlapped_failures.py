"""When the draft's worker fails, dies or is no longer wanted: clear errors, no process
left behind, and the next answer works.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from engine_kit import (
    ToyDraft,
    Trouble,
    alive,
    ask,
    emitted,
    require_clean,
    toy_engine,
)

from lr.engine.worker import DraftWorker, DraftWorkerError, Parts
from lr.errors import CheckpointError, LRError, OutOfBlocks, SettingError
from lr.spec.variant import Variant
from lr.types import Role

OVERLAPPED = {"driver": "overlapped"}


def pid(worker: DraftWorker) -> int | None:
    assert worker.process is not None
    return worker.process.pid


def missing_file() -> Parts:
    raise FileNotFoundError("no such file")


def broken_checkpoint() -> Parts:
    raise CheckpointError("there is no such checkpoint")


@pytest.mark.parametrize(
    ("then", "error", "text"),
    [("fill", OutOfBlocks, "blocks"), ("raise", DraftWorkerError, "a bug")],
)
def test_what_the_worker_raises_is_raised_here(
    then: str, error: type[LRError], text: str
) -> None:
    """As in lockstep; the worker goes on, but this answer is over."""
    worker = DraftWorker(ToyDraft(Trouble(after=5, then=then)), as_thread=True)
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        with pytest.raises(error, match=text):
            ask(engine, **OVERLAPPED).finish()
        require_clean(engine, [Role.TARGET])
        with pytest.raises(error, match=text):  # it begins again, with a new cache
            ask(engine, **OVERLAPPED).finish()


def test_a_worker_that_dies_is_an_error_and_the_next_answer_has_a_new_one() -> None:
    worker = DraftWorker(ToyDraft(Trouble(after=9)))
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        answer = ask(engine, **OVERLAPPED)
        worker.start()
        first = worker.process
        with pytest.raises(DraftWorkerError, match="exit code 3"):
            answer.finish()
        require_clean(engine, [Role.TARGET])
        assert first is not None and not first.is_alive()
        worker.load = ToyDraft()
        assert emitted(ask(engine, **OVERLAPPED))
        assert worker.process is not first


@pytest.mark.parametrize(
    ("load", "error"),
    [(broken_checkpoint, CheckpointError), (missing_file, DraftWorkerError)],
)
def test_a_draft_that_cannot_be_loaded(
    load: Callable[[], Parts], error: type[LRError]
) -> None:
    worker = DraftWorker(load)
    for _ in range(2):
        with pytest.raises(error, match="no such"):
            worker.start()
        assert worker.process is None


def test_a_worker_without_an_answer_ends_with_its_owner() -> None:
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


def test_two_loops_do_not_share_a_worker() -> None:
    worker = DraftWorker(ToyDraft(), as_thread=True)
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        steps = iter(ask(engine, **OVERLAPPED))
        next(steps)
        with pytest.raises(SettingError, match="in use"):
            ask(engine, **OVERLAPPED).finish()
        assert list(steps)
        assert emitted(ask(engine, **OVERLAPPED))


def test_the_worker_runs_no_code_of_a_variant() -> None:
    variant = Variant(segmenter=lambda token_bytes: None)  # type: ignore[arg-type,return-value]
    engine = toy_engine(worker=DraftWorker(ToyDraft(), as_thread=True))
    with closing(engine), pytest.raises(SettingError, match="segmenter"):
        ask(engine, variant=variant, **OVERLAPPED).finish()


PROGRAM = """
from engine_kit import ToyDraft, Trouble, ask, toy_engine
from lr.engine.worker import DraftWorker

if __name__ == "__main__":
    worker = DraftWorker(ToyDraft(Trouble(delay=0.2)))
    engine = toy_engine(endless=True, worker=worker)
    for _ in ask(engine, max_tokens=400, driver="overlapped"):
        print(worker.process.pid, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_no_orphans_however_the_program_ends(tmp_path: Path, name: str) -> None:
    """Ctrl-C goes to both processes, as a terminal sends it; a kill to the parent
    alone."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "tests", root / "tests/engine")))
    program = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    pid = int(program.stdout.readline())  # a step is there
    if name == "SIGINT":
        os.killpg(program.pid, signal.SIGINT)
    else:
        program.kill()
    _, errors = program.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)
    if name == "SIGINT":
        assert errors.count("Traceback") == 1  # the program's own
        assert "KeyboardInterrupt" in errors


def test_a_plain_script_needs_no_guard(tmp_path: Path) -> None:
    """The second process does not import the script that asked for it: what stands
    there happens once."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import lr\n"
        "print('once')\n"
        "reasoner = lr.Reasoner()\n"
        "result = reasoner.generate('How many coins does Ann have?', "
        "driver='overlapped', max_tokens=20)\n"
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
