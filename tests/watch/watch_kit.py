"""Traces for the tests of what shows traces, a browser to show them in, and a stepper's
session on a script.
"""

import os
import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
from model_kit import with_loader

from lr.model.weights import load_model
from lr.reasoner import Reasoner
from lr.spec.protocol import Limits, SchedulerConfig
from lr.tiny.language import Split, problem
from lr.watch.scripted import ScriptedRun, TextScript, scripted_trace
from lr.watch.stepper.session import ScriptSource, Session
from lr.watch.trace.file import TraceFile, trace_of

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
def a_browser():
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


def run_of(targets, drafts, depth, width=1):
    """The trace of a scripted run to its end."""
    config = SchedulerConfig(Limits(10**6), depth=depth, width=width)
    run = ScriptedRun(config, TextScript(targets, drafts))
    run.run()
    return scripted_trace(run)


@cache
def scripted():
    """Width 2, with an accepted step, a correction and much that is cancelled."""
    drafts = ["A.|x.", "x.|B.", "y.|z.", "D.", "E$"]
    return run_of("a. b. c. d. e$".split(), drafts, depth=3, width=2)


@cache
def tiny(mode):
    """The tiny models as they ship, with tokens and caches."""
    ahead = {"depth": 2, "width": 2} if mode.startswith("lr") else {}
    run = tiny_reasoner().run(
        problem(Split.TEST, 0).question,
        detailed=True,
        mode=mode,
        max_tokens=60,
        num_speculative_tokens=3,
        **ahead,
    )
    run.finish()
    return trace_of(run)


@cache
def nasty():
    """A question and a step that would break a page that trusts them."""
    trace = run_of([NASTY + "$"], [NASTY.upper() + "$"], depth=1)
    header = replace(trace.header, question=NASTY, options={"note": NASTY})
    return TraceFile(header, trace.records, [NASTY])


QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
SCRIPT = TextScript("a. b. c. d$".split(), "A. x. C. D$".split())
"""The draft writes in capitals; its step 1 is not the target's."""


def script_session(width=1):
    config = SchedulerConfig(Limits(50), depth=2, width=width)
    return Session(ScriptSource(ScriptedRun(config, SCRIPT)))


@cache
def tiny_reasoner():
    """The tiny models as they ship: they disagree now and then."""
    with with_loader(load_model):
        return Reasoner(verifier="oracle")
