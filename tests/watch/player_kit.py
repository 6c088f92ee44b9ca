"""Traces for the tests of what shows traces, and a browser to show them in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from lr.spec.protocol import (
    Limits,
    SchedulerConfig,
)
from lr.watch.scripted import ScriptedRun, TextScript, scripted_trace
from lr.watch.trace.file import TraceFile, write_trace

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
NASTY = (
    'How many <b>steps</b>?</script><script>window.struck = "yes"</script>'
    '<img src=x onerror="window.struck = 1">'
)
BLOCK = 16


@contextmanager
def a_browser() -> Iterator[Any]:
    """A headless Chromium. Without one, or without playwright: the test is skipped, or
    fails where LR_BROWSER is "required".
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        reason = f"none of {', '.join(BROWSERS)} is installed, or playwright is not"
        assert os.environ.get("LR_BROWSER") != "required", reason
        pytest.skip(reason)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def run_of(
    targets: list[str], drafts: list[str], depth: int, width: int = 1
) -> TraceFile:
    """The trace of a scripted run to its end."""
    config = SchedulerConfig(Limits(10**6), depth=depth, width=width)
    run = ScriptedRun(config, TextScript(targets, drafts))
    run.run()
    return scripted_trace(run)


@cache
def scripted() -> TraceFile:
    """Width 2, with an accepted step, a correction and much that is cancelled."""
    drafts = ["A.|x.", "x.|B.", "y.|z.", "D.", "E$"]
    return run_of(["a.", "b.", "c.", "d.", "e$"], drafts, depth=3, width=2)


@cache
def bushy() -> TraceFile:
    """Width 3 and depth 2: up to thirteen nodes."""
    drafts = [f"The sum is {n}1.|So it is {n}2.|That makes {n}3." for n in range(1, 6)]
    targets = [f"The sum is {n}4." for n in range(1, 5)] + ["It is 55$"]
    return run_of(targets, drafts, depth=2, width=3)


@cache
def long() -> TraceFile:
    """Some 10,000 events."""
    steps = [f"step {n} has a few words." for n in range(1300)]
    return run_of([*steps, "end$"], [step.upper() for step in steps], depth=2)


@cache
def tiny(mode: str) -> TraceFile:
    """The tiny models as they ship, with tokens and caches."""
    from reasoner_kit import with_loader

    from lr.model.weights import load_model
    from lr.reasoner import Reasoner
    from lr.tiny.language import Split, problem
    from lr.watch.trace.record import trace_of

    question = problem(Split.TEST, 0).question
    with_ahead = {"depth": 2, "width": 2} if mode.startswith("lr") else {}
    with with_loader(load_model):
        reasoner = Reasoner()
    run = reasoner.run(
        question,
        detailed=True,
        mode=mode,
        max_tokens=60,
        num_speculative_tokens=3,
        **with_ahead,
    )
    run.finish()
    return trace_of(run)


@cache
def wordy() -> TraceFile:
    """Steps of some length, in which the last number decides."""
    first = "At first Ann holds seven coins, as the story tells us in its beginning."
    target = (
        "Then Ben gets three more coins than Ann, and so he holds 7 + 3 = 10 coins now."
    )
    steps = [first, target, "Answer 10$"]
    return run_of(steps, [s.upper().replace("= 10", "= 11") for s in steps], depth=3)


@cache
def nasty() -> TraceFile:
    """A question and a step that would break a page that trusts them."""
    trace = run_of([NASTY + "$"], [NASTY.upper() + "$"], depth=1)
    header = replace(trace.header, question=NASTY, options={"note": NASTY})
    return TraceFile(header, trace.records, [NASTY])


def as_file(trace: TraceFile, path: Any) -> Any:
    """Write a trace to `path`, which is given back."""
    write_trace(path, trace)
    return path
