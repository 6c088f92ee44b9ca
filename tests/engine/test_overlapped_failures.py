"""When the draft worker fails, hangs, dies or is no longer wanted: clear errors, no
process left behind, and the next run works.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from overlapped_kit import ByTokens, Setting, Trouble, alive, parts
from spec_kit import answered, random_model

from lr.engine.worker import DraftWorker, DraftWorkerError, Parts
from lr.errors import CheckpointError, LRError, OutOfBlocks, SettingError
from lr.spec.protocol import Limits, SchedulerConfig

TARGET, DRAFT = random_model(0), random_model(2)
CONFIG = SchedulerConfig(Limits(60, 14))
PROMPTS = [[5, 6, 7]]


def broken_checkpoint() -> Parts:
    raise CheckpointError("there is no such checkpoint")


def is_clean(setting_target: object) -> bool:
    return setting_target.runner.cache.pool.num_used == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("then", "error", "text"),
    [
        ("run out of blocks", OutOfBlocks, "9 more blocks"),
        ("raise a bug", DraftWorkerError, "ValueError: a bug"),
    ],
)
def test_what_the_worker_raises_is_raised_here(
    then: str, error: type[LRError], text: str
) -> None:
    """As in lockstep; the worker itself goes on, but this run of it is over."""
    trouble = parts(DRAFT, Trouble(after=5, then=then))
    with closing(DraftWorker(trouble, as_thread=True, patience=60)) as worker:
        driver, chains = Setting(TARGET, endless=True).begin(
            worker, CONFIG, PROMPTS, ByTokens()
        )
        with pytest.raises(error, match=text):
            list(answered(driver, chains))
        assert is_clean(driver.target)
        assert worker.pid == os.getpid()  # the thread is still there


def test_a_worker_that_dies_is_an_error_and_the_next_run_has_a_new_one() -> None:
    with closing(DraftWorker(parts(DRAFT, Trouble(after=9)), patience=60)) as worker:
        driver, chains = Setting(TARGET, endless=True).begin(
            worker, CONFIG, PROMPTS, ByTokens()
        )
        first = worker.pid
        with pytest.raises(DraftWorkerError, match=r"died.*driver lockstep"):
            list(answered(driver, chains))
        assert is_clean(driver.target)
        assert first is not None
        assert not alive(first)
        worker.load = parts(DRAFT)
        assert Setting(TARGET, endless=True).run(worker, CONFIG, PROMPTS, ByTokens())[0]
        assert worker.pid not in (None, first)


def test_a_worker_that_hangs_is_waited_for_only_so_long() -> None:
    with closing(DraftWorker(parts(DRAFT, Trouble(after=3, then="hang")))) as worker:
        driver, chains = Setting(TARGET, endless=True).begin(
            worker, CONFIG, PROMPTS, ByTokens()
        )
        pid, worker.patience = worker.pid, 0.5
        started = time.monotonic()
        with pytest.raises(DraftWorkerError, match=r"silent for 0\.5 seconds"):
            list(answered(driver, chains))
        assert time.monotonic() - started < 30
        assert pid is not None
        assert not alive(pid)


def test_a_draft_that_cannot_be_loaded() -> None:
    worker = DraftWorker(broken_checkpoint)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        worker.start()
    assert worker.pid is None


def test_a_worker_without_a_run_ends_with_its_owner() -> None:
    """Closed, dropped, left at exit: gone."""
    worker = DraftWorker(parts(DRAFT))
    worker.start()
    closed = worker.pid
    worker.close()
    worker.start()
    dropped = worker.pid
    del worker
    gc.collect()
    assert closed is not None
    assert dropped is not None
    assert not alive(closed)
    assert not alive(dropped)


def test_closing_while_a_run_is_at_work() -> None:
    worker = DraftWorker(parts(DRAFT), as_thread=True)
    driver, chains = Setting(TARGET, seed=3, endless=True).begin(
        worker, CONFIG, PROMPTS, ByTokens()
    )
    steps = answered(driver, chains)
    next(steps)
    worker.close()
    with pytest.raises(DraftWorkerError, match="closed"):
        list(steps)
    assert is_clean(driver.target)


def test_settings_that_cannot_be_sent() -> None:
    writing = replace(Setting(TARGET).writing(), segmenter=lambda token_bytes: None)
    with pytest.raises(SettingError, match="top level of a module"):
        DraftWorker(parts(DRAFT)).begin(writing, 10)


def test_a_run_that_cannot_begin_says_so_at_once() -> None:
    with closing(DraftWorker(parts(DRAFT), as_thread=True)) as worker:
        with pytest.raises(SettingError, match="num_blocks"):
            worker.begin(Setting(TARGET).writing(), 0)
        assert not worker.runs
        assert Setting(TARGET).run(worker, CONFIG, PROMPTS[:1], ByTokens())[0]


def test_impossible_settings() -> None:
    with pytest.raises(SettingError, match="patience"):
        DraftWorker(parts(DRAFT), patience=0)


PROGRAM = """
import sys
from lr.engine.worker import DraftWorker
from overlapped_kit import ByTokens, Setting, Trouble, parts
from spec_kit import answered, random_model
from lr.spec.protocol import Limits
from lr.spec.protocol import SchedulerConfig

if __name__ == "__main__":
    worker = DraftWorker(parts(random_model(2), Trouble(delay=0.2)))
    setting, config = Setting(random_model(0), endless=True), SchedulerConfig(Limits(400, 14))
    driver, chains = setting.begin(worker, config, [[5, 6, 7]], ByTokens())
    for _ in answered(driver, chains):
        print(worker.pid, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_no_orphans_however_the_program_ends(tmp_path: Path, name: str) -> None:
    """Ctrl-C goes to both processes, as a terminal sends it; a kill to the parent
    alone."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests"), str(root / "tests/engine")])
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
    while alive(pid) and not is_zombie(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid) or is_zombie(pid)
    if name == "SIGINT":
        assert (
            errors.count("Traceback") == 1
        )  # the program's own; the worker says nothing
        assert "KeyboardInterrupt" in errors


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and only waits for whoever inherited it."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_plain_script_needs_no_guard(tmp_path: Path) -> None:
    """The second process does not import the script that asked for it: what stands
    there happens once.
    """
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
