"""Traces for the tests of what shows traces, and a browser to show them in."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from lr.lab.scripted.scripted import ScriptedRun
from lr.lab.scripted.texts import TextScript
from lr.lab.trace.file import TraceFile, parse_trace, trace_lines
from lr.lab.trace.header import Header
from lr.lab.trace.virtual import scripted_trace, simulated_trace
from lr.spec.protocol import Limits, Schedule, SchedulerConfig
from lr.theory.distributions import Bernoulli, Constant
from lr.theory.simulate import ENDLESS, World

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
NASTY = 'How many <b>steps</b>?</script><script>window.struck = "yes"</script><img src=x onerror="window.struck = 1">'
BLOCK = 16


@contextmanager
def a_browser() -> Iterator[Any]:
    """A headless Chromium. Without one, or without playwright: the test is skipped, or fails where
    LR_BROWSER is "required".
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        found = None
    if found is None:
        why = f"no browser: none of {', '.join(BROWSERS)} is installed, or the package playwright is not"
        assert os.environ.get("LR_BROWSER") != "required", why
        pytest.skip(why)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@cache
def scripted() -> TraceFile:
    """Width 2, with an accepted step, a correction and much that is cancelled."""
    script = TextScript(["a.", "b.", "c.", "d.", "e$"], ["A.|x.", "x.|B.", "y.|z.", "D.", "E$"])
    run = ScriptedRun(SchedulerConfig(Limits(50), depth=3, width=2), script)
    run.run()
    return scripted_trace(run)


@cache
def synchronous() -> TraceFile:
    """With a bonus."""
    run = ScriptedRun(
        SchedulerConfig(Limits(50), schedule=Schedule.SYNC, depth=2),
        TextScript(["a.", "b.", "c.", "d$"], ["A.", "B.", "C.", "D$"]),
    )
    run.run()
    return scripted_trace(run)


@cache
def simulated(steps: int = 60) -> TraceFile:
    """Virtual time, tokens without texts, no cache; pairs wait for the one judge."""
    world = World(Bernoulli(0.6), draft=Constant(0.2), judge=Constant(0.5), judge_workers=1)
    return simulated_trace(SchedulerConfig(ENDLESS, depth=4), world, steps=steps)


@cache
def tiny(mode: str) -> TraceFile:
    """The tiny models, with tokens and caches."""
    from lr.lab.trace.traced import trace_of
    from lr.reasoner import Reasoner
    from lr.tiny.language import Split, problem

    question = problem(Split.TEST, 0).question
    with_ahead = {"depth": 2, "width": 2} if mode.startswith("lr") else {}
    run = Reasoner().run(
        question, detailed=True, mode=mode, max_tokens=60, num_speculative_tokens=3, **with_ahead
    )
    run.finish()
    return trace_of(run)


@cache
def nasty() -> TraceFile:
    """A question and a step that would break a page that trusts them."""
    run = ScriptedRun(
        SchedulerConfig(Limits(200), depth=1), TextScript([NASTY + "$"], [NASTY.upper() + "$"])
    )
    run.run()
    trace = scripted_trace(run)
    trace.header.options["note"] = NASTY
    content = trace.header.to_json() | {"question": NASTY}
    return TraceFile(Header.from_json(content), trace.records, [NASTY])


@cache
def long(steps: int = 400) -> TraceFile:
    """About 26 events per step: tokens, forks, copies, growing tables; every draft step is
    accepted. The last block of the old table is half full, so that each fork is followed by a copy
    on write."""
    header = Header(
        driver="lockstep",
        depth=1,
        caches={"target": {"blocks": 2 * steps + 8, "block_size": BLOCK}},
    )
    made: list[dict[str, Any]] = [{"event": "open", "cache": "target", "branch": 0}, _hold(0)]
    made.append(_grow(0, BLOCK // 2, fresh=[[0, 0]]))
    for i in range(steps):
        made += _a_step(i)
    made.append({"event": "end", "done": True, "why": ""})
    lines = [json.dumps(header.to_json())]
    lines += [json.dumps({"time": 0.001 * number} | event) for number, event in enumerate(made)]
    return parse_trace(lines)


def _hold(i: int) -> dict[str, Any]:
    return {"event": "hold", "cache": "target", "branch": i, "node": f"0:{i}"}


def _grow(branch: int, length: int, copies: Any = (), fresh: Any = ()) -> dict[str, Any]:
    rows = [[branch, length]]
    return {
        "event": "grow",
        "cache": "target",
        "rows": rows,
        "copies": list(copies),
        "fresh": list(fresh),
    }


def _a_step(i: int) -> list[dict[str, Any]]:
    node, child, old = f"0:{i}", f"0:{i + 1}", 2 * i
    words = [f" word{place}" for place in range(7)] + ["\n\n"]
    step = {"tokens": list(range(8)), "pieces": words, "finish": "boundary"}
    verdict = {"aligned": True, "why": "the same", "score": None}
    common = {"index": i, "step": step, "node": child}
    tokens = [
        {
            "event": "token",
            "role": "draft",
            "node": child,
            "index": i,
            "offset": place,
            "token": place,
        }
        | {"p": 0.5, "key": f"0x{place:016x}", "piece": words[place]}
        for place in range(8)
    ]
    return [
        {"event": "draft", "node": node, "children": [child], "limit": 100},
        {"event": "target", "node": node, "limit": 100},
        *tokens,
        {"event": "fork", "cache": "target", "branch": i + 1, "source": i},
        _hold(i + 1),
        _grow(i + 1, BLOCK // 2 + BLOCK * (i + 1), [[i + 1, old, old + 1]], [[i + 1, old + 2]]),
        {"event": "forward", "role": "target", "branches": 2, "tokens": 9, "seconds": 0.002},
        {"event": "written", "role": "draft"} | common,
        {"event": "drafted", "node": child, "step": step},
        {"event": "written", "role": "target"} | common | {"node": node},
        {"event": "targeted", "node": node, "step": step},
        {"event": "judge", "node": child, "parent": node},
        {"event": "verifier", "pairs": 1, "seconds": 0.001},
        {"event": "judged", "node": child, "verdict": verdict, "alone": False},
        {"event": "decided", "index": i, "verdict": verdict},
        {"event": "emit", "origin": "accepted", "verdict": verdict, "rejected": None} | common,
        {"event": "survive", "node": child, "root": child},
        {"event": "close", "cache": "target", "branch": i, "dropped": [old], "freed": [old]},
        {"event": "release", "node": node},
    ]


def as_file(trace: TraceFile, path: Any) -> Any:
    """Write a trace to `path`, which is given back."""
    path.write_text("\n".join(trace_lines(trace.header, trace.records)) + "\n", encoding="utf-8")
    return path
