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

from lr.engine.recorder import (
    BranchClosed,
    BranchesGrew,
    BranchForked,
    BranchHolds,
    BranchOpened,
)
from lr.spec.protocol import (
    Draft,
    Drafted,
    Emit,
    Judge,
    Judged,
    Limits,
    NodeId,
    Release,
    SchedulerConfig,
    Target,
    Targeted,
)
from lr.theory.distributions import Bernoulli, Constant
from lr.theory.simulate import ENDLESS, World
from lr.trace import (
    Ended,
    ForwardPass,
    RunEvent,
    StepWritten,
    TokenWritten,
    VerifierCall,
)
from lr.types import EmittedStep, Finish, Origin, Role, Step, Verdict
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.trace.file import Header, TraceFile, records_of, write_trace
from lr.watch.trace.record import scripted_trace, simulated_trace

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
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        why = (
            f"no browser: none of {', '.join(BROWSERS)} is installed, or the package "
            f"playwright is not"
        )
        assert os.environ.get("LR_BROWSER") != "required", why
        pytest.skip(why)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@cache
def scripted() -> TraceFile:
    """Width 2, with an accepted step, a correction and much that is cancelled."""
    script = TextScript(
        ["a.", "b.", "c.", "d.", "e$"], ["A.|x.", "x.|B.", "y.|z.", "D.", "E$"]
    )
    run = ScriptedRun(SchedulerConfig(Limits(50), depth=3, width=2), script)
    run.run()
    return scripted_trace(run)


@cache
def bushy() -> TraceFile:
    """Width 3 and depth 2: up to thirteen nodes."""
    drafts = [f"The sum is {n}1.|So it is {n}2.|That makes {n}3." for n in range(1, 6)]
    targets = [f"The sum is {n}4." for n in range(1, 5)] + ["It is 55$"]
    config = SchedulerConfig(Limits(400), depth=2, width=3)
    run = ScriptedRun(config, TextScript(targets, drafts))
    run.run()
    return scripted_trace(run)


@cache
def simulated(steps: int = 60) -> TraceFile:
    """Virtual time, tokens without texts, no cache; pairs wait for the one judge."""
    world = World(Bernoulli(0.6), draft=Constant(0.2), judge=Constant(0.5))
    return simulated_trace(SchedulerConfig(ENDLESS, depth=4), world, steps=steps)


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
    target = (
        "Then Ben gets three more coins than Ann, and so he holds 7 + 3 = 10 coins now."
    )
    draft = (
        "THEN BEN GETS THREE MORE COINS THAN ANN, AND SO HE HOLDS 7 + 3 = 11 COINS NOW."
    )
    first = "At first Ann holds seven coins, as the story tells us in its beginning."
    script = TextScript(
        [first, target, "Answer 10$"], [first.upper(), draft, "ANSWER 10$"]
    )
    run = ScriptedRun(SchedulerConfig(Limits(400), depth=3), script)
    run.run()
    return scripted_trace(run)


@cache
def nasty() -> TraceFile:
    """A question and a step that would break a page that trusts them."""
    run = ScriptedRun(
        SchedulerConfig(Limits(200), depth=1),
        TextScript([NASTY + "$"], [NASTY.upper() + "$"]),
    )
    run.run()
    trace = scripted_trace(run)
    trace.header.options["note"] = NASTY
    header = replace(trace.header, question=NASTY)
    return TraceFile(header, trace.records, [NASTY])


@cache
def long(steps: int = 420) -> TraceFile:
    """About 24 events per step: tokens, forks, copies, growing tables; every draft step
    is accepted. The last block of the old table is half full, so that each fork is
    followed by a copy on write."""
    header = Header(
        driver="lockstep",
        depth=1,
        caches={"target": {"blocks": 2 * steps + 8, "block_size": BLOCK}},
    )
    made: list[RunEvent] = [
        BranchOpened("target", 0),
        BranchHolds("target", 0, NodeId(0, 0)),
    ]
    made.append(BranchesGrew("target", ((0, BLOCK // 2),), (), ((0, 0),)))
    for i in range(steps):
        made += _a_step(i, last=i == steps - 1)
    made.append(Ended(done=True))
    timed = [(0.001 * number, event) for number, event in enumerate(made)]
    return TraceFile(header, records_of(timed, lambda token: WORDS[token].encode()))


WORDS = [f" word{place}" for place in range(7)] + ["\n\n"]


def _a_step(i: int, *, last: bool) -> list[RunEvent]:
    node, child, old, branch = NodeId(0, i), NodeId(0, i + 1), 2 * i, i + 1
    step, verdict = Step(tuple(range(8)), Finish.BOUNDARY), Verdict(True, "the same")
    emitted = EmittedStep(i, step, Origin.ACCEPTED, verdict)
    length = BLOCK // 2 + BLOCK * branch
    return [
        Draft(node, (child,), 100),
        Target(node, 100),
        *(
            TokenWritten(Role.DRAFT, child, i, place, place, 0.5, place)
            for place in range(8)
        ),
        BranchForked("target", branch, i),
        BranchHolds("target", branch, child),
        BranchesGrew(
            "target",
            ((branch, length),),
            ((branch, old, old + 1),),
            ((branch, old + 2),),
        ),
        ForwardPass(Role.TARGET, 2, 9, 0.002),
        StepWritten(Role.DRAFT, i, step, child),
        Drafted(child, step),
        StepWritten(Role.TARGET, i, step, node),
        Targeted(node, step),
        Judge(child, node, step, step),
        VerifierCall(1, 0.001),
        Judged(child, verdict),
        Emit(emitted, (verdict,), child, None if last else child),
        BranchClosed("target", i, (old,), (old,)),
        Release(node),
    ]


def as_file(trace: TraceFile, path: Any) -> Any:
    """Write a trace to `path`, which is given back."""
    write_trace(path, trace)
    return path
