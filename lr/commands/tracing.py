"""Where commands that answer questions write the trace of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lr.engine.answer import Run
from lr.lab.trace.traced import save_trace


@contextmanager
def saving(path: Path | None, run: Run) -> Iterator[None]:
    """Write the trace of what is answered inside to `path` (None: nowhere), also if it is
    interrupted or fails.
    """
    try:
        yield
    except BaseException as error:
        if path is not None:
            save_trace(path, run, why=f"{type(error).__name__}: {error}")
        raise
    if path is not None:
        save_trace(path, run)
