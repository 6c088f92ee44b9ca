"""When the draft's worker fails, dies or is no longer wanted: clear errors, no process
left behind, and the next answer works. (`tests/test_signals.py`: when the program ends.)
"""

import gc
from contextlib import closing

import pytest
from tests_root import python
from toy_kit import ToyDraft, Trouble, ask, emitted, require_clean, toy_engine

from lr.engine.worker import DraftWorker, DraftWorkerError
from lr.errors import CheckpointError, OutOfBlocks, SettingError
from lr.types import Role

OVERLAPPED = {"driver": "overlapped"}


@pytest.mark.parametrize(
    "then, error, text",
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
    processes = [worker.process]
    worker.close()
    worker.start()
    processes.append(worker.process)
    del worker
    gc.collect()
    assert not any(process.is_alive() for process in processes)


def test_two_loops_do_not_share_a_worker():
    worker = DraftWorker(ToyDraft(), as_thread=True)
    with closing(toy_engine(endless=True, worker=worker)) as engine:
        steps = iter(ask(engine, **OVERLAPPED))
        next(steps)
        with pytest.raises(SettingError, match="in use"):
            ask(engine, **OVERLAPPED).finish()
        assert list(steps)
        assert emitted(ask(engine, **OVERLAPPED))


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
    done = python(script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "once\nTrue\n"), done.stderr
