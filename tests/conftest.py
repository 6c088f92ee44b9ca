"""What holds for every test: one thread, processes that start quickly, and afterwards
the conservation law in every cache that is alive.
"""

import atexit
import functools
import gc
import inspect
import multiprocessing
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import pytest
import torch

from lr.kvcache.cache import PagedKVCache
from lr.kvcache.invariant import check_cache

gc.disable()  # until everything is imported
torch.set_num_threads(1)  # the tensors are tiny: threads only get in each other's way
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a background job of a shell ignores it
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
# nbformat's checker would compile a grammar of web addresses for seconds. Notebooks
# need none.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


HERE = Path(__file__).parent
CORE = (
    *("kvcache/*", "spec/test_acceptance.py", "spec/test_scheduler_*"),
    *("spec/test_sampling.py", "spec/test_segmenters.py", "spec/test_token_sd.py"),
    "test_lookahead.py",
)
"""What `pytest -m core` runs: the cache, the scheduler, the token level, the page."""


@functools.cache
def in_core(path):
    return any(path.relative_to(HERE).match(pattern) for pattern in CORE)


def pytest_ignore_collect(collection_path, config):
    """With `-m core` the other files are not even imported, which would take as long
    again."""
    others = config.option.markexpr == "core" and collection_path.suffix == ".py"
    return True if others and not in_core(collection_path) else None


def pytest_collection_modifyitems(items):
    for item in items:
        if in_core(item.path):
            item.add_marker(pytest.mark.core)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """What is imported by now stays: a collection of garbage need not look at it again
    and again, which takes half a second each time.
    """
    gc.freeze()
    gc.enable()
    atexit.register(
        gc.unfreeze
    )  # so that nothing is left, of which a library would complain


@pytest.fixture(scope="session", autouse=True)
def quick_starts():
    """The processes of drafts and ranks are forks of a server that has imported
    PyTorch, which takes seconds. Where a test runs a program of its own, they are
    started as users start them.
    """
    plain = multiprocessing.get_context
    server = plain(
        "forkserver"
        if "forkserver" in multiprocessing.get_all_start_methods()
        else None
    )
    server.set_forkserver_preload(
        ["lr.engine.worker", "lr.reasoner", "lr.model.ranks", "transformers"]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            multiprocessing,
            "get_context",
            lambda how=None: server if how == "spawn" else plain(how),
        )
        yield


@pytest.fixture
def cli(capsys):
    """Runs `lr WORDS` in this process; gives what was printed. Only `code` may be its
    exit code, and no error may have a traceback."""
    from lr.commands.cli import main

    def run(words, code=0):
        try:
            ended = main(shlex.split(words))
        except SystemExit as end:  # tyro's own way out
            ended = end.code
        printed = capsys.readouterr()
        assert ended == code and "Traceback" not in printed.err, printed.err
        return printed

    return run


@pytest.fixture
def short_answers(monkeypatch):
    """Every answer ends after 24 tokens: for commands that have no flag for it."""
    from lr.engine.engine import Engine

    ask = Engine.question

    def cut(engine, text, options, *rest):
        return ask(engine, text, replace(options, max_tokens=24), *rest)

    monkeypatch.setattr(Engine, "question", cut)


@pytest.fixture
def coarse_predictions(monkeypatch):
    """Predictions from a tenth of the simulated steps: other tests ask how exact they
    are."""
    monkeypatch.setattr("lr.theory.cost.SIMULATED_STEPS", 200)


@pytest.fixture(scope="session", autouse=True)
def sources_once():
    """The command line reads the docstrings of its flags from the sources of its
    classes: the same ones for each command that a test runs in this process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "getsource", functools.cache(inspect.getsource))
        yield


@pytest.fixture(scope="session", autouse=True)
def small_targets():
    """In this process a `Reasoner` loads tiny targets of two layers, not twenty: few
    tests ask how good an answer is. Those that do use `whole_targets`; notebooks and
    programs load the whole.
    """
    from model_kit import load_small, with_loader

    with with_loader(load_small):
        yield


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """A random checkpoint whose matrices can be quantised, and divided in two."""
    from model_kit import write_checkpoint

    folder = tmp_path_factory.mktemp("target")
    return write_checkpoint(folder, seed=1, layers=2, heads=(4, 2))


@pytest.fixture(scope="session")
def draft(tmp_path_factory):
    """A random checkpoint that hardly ever agrees with `target`."""
    from model_kit import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("draft"), seed=2)


@pytest.fixture
def whole_targets():
    """The tiny targets as they ship."""
    from model_kit import with_loader

    from lr.model.weights import load_model

    with with_loader(load_model):
        yield


@pytest.fixture(scope="session", autouse=True)
def caches():
    """Every cache that is built while the tests run, as long as somebody holds it."""
    seen = WeakSet()
    build = PagedKVCache.__init__

    def build_and_remember(self, **settings):
        build(self, **settings)
        seen.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagedKVCache, "__init__", build_and_remember)
        yield seen


@pytest.fixture(autouse=True)
def conservation_law(caches):
    """After the test: free + used = total, each refcount is the number of owners, and
    no append was left open. A draft's worker that is a thread of this process may be
    giving blocks back just now; that takes less than ten seconds.
    """
    yield
    until = time.monotonic() + 10
    for cache in list(caches):
        while True:
            try:
                check_cache(cache)
                assert cache.open_append is None
                break
            except AssertionError:
                if threading.active_count() == 1 or time.monotonic() > until:
                    raise
                time.sleep(0.02)
