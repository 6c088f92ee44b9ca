"""`lr play --live`: who may ask, what the page asks for, and the page in a real
browser."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from player_kit import a_browser, as_file, scripted
from stepper_kit import QUESTION, SCRIPT, live_session, tiny_reasoner
from tests_root import ROOT

from lr.commands.cli import main
from lr.errors import SettingError
from lr.reasoner import Reasoner
from lr.spec.protocol import Limits, SchedulerConfig
from lr.tiny.language import Split, problem
from lr.watch.player.live import MOVES, Asked, Live, LiveServer, news
from lr.watch.scripted import ScriptedRun, TextScript
from lr.watch.stepper.live import LiveSource
from lr.watch.stepper.session import Session
from lr.watch.stepper.sources import ScriptSource, Source

OTHER = problem(Split.TEST, 3).question
OPTIONS = {"mode": "lr", "depth": 3, "temperature": 0.6, "seed": 1, "max_tokens": 60}
PATIENCE = 120
"""Seconds that a test waits for the engine: far more than it takes."""


def a_script(question: str | None) -> Source:
    """Refuses one question, so that the refusal can be seen."""
    if question == "what?":
        raise SettingError("'what?' is none of its questions.")
    config = SchedulerConfig(Limits(50), depth=2)
    return ScriptSource(lambda: ScriptedRun(config, SCRIPT))


def a_run(question: str | None) -> Source:
    return LiveSource(tiny_reasoner(), OTHER if question is None else question, OPTIONS)


@contextmanager
def served(live: Live) -> Iterator[LiveServer]:
    with LiveServer(live) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        live.session.close()


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with served(Live(a_script)) as made:
        yield made


def ask(
    server: LiveServer,
    method: str,
    path: str,
    body: object = None,
    **headers: str | None,
) -> tuple[int, str, dict[str, str]]:
    """A request with the headers of our own page, but for those given; None leaves one
    out."""
    own = f"127.0.0.1:{server.server_port}"
    said: dict[str, str | None] = {"Host": own, "Content_Type": "application/json"}
    said |= {"Origin": f"http://{own}" if method == "POST" else None} | headers
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.server_port, timeout=PATIENCE
    )
    connection.putrequest(method, path, skip_host=True)
    text = (
        b""
        if body is None
        else body
        if isinstance(body, bytes)
        else json.dumps(body).encode()
    )
    for name, value in (said | {"Content_Length": str(len(text))}).items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(text)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_page_is_served_to_its_own_address(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert (
        server.address == f"http://127.0.0.1:{server.server_port}/?token={server.token}"
    )
    for host in ("127.0.0.1", "localhost"):
        status, page, headers = ask(
            server,
            "GET",
            f"/?token={server.token}",
            Host=f"{host}:{server.server_port}",
        )
        assert status == 200 and page.startswith("<!DOCTYPE html>")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer", (
            "the address holds the token"
        )
        assert "Access-Control-Allow-Origin" not in headers


def test_nobody_else_is_answered(server: LiveServer) -> None:
    """Another name for this machine, another site's page, an address without the
    token."""
    right, look = f"token={server.token}", {"what": "look"}
    evil = f"evil.example:{server.server_port}"
    for method, path, body in (("GET", "/", None), ("POST", "/do", look)):
        assert ask(server, method, f"{path}?{right}", body)[0] == 200
        refused: list[tuple[str, dict[str, str | None]]] = [
            (right, {"Host": evil}),
            (right, {"Host": None}),
            (right, {"Host": "127.0.0.1"}),
            (right, {"Host": evil, "Origin": f"http://{evil}"}),
            (right, {"Origin": "https://evil.example"}),
            (right, {"Origin": "null"}),
            (right, {"Origin": f"http://127.0.0.1:{server.server_port + 1}"}),
            ("", {}),
            ("token=", {}),
            ("token=x" + server.token, {}),
        ]
        for query, headers in refused:
            status, text, _ = ask(server, method, f"{path}?{query}", body, **headers)
            assert status == 403 and server.token not in text, (query, headers)
    for headers in ({"Origin": None}, {"Content_Type": "text/plain"}):
        assert ask(server, "POST", f"/do?{right}", look, **headers)[0] == 404, (
            "a form can send it"
        )
    assert ask(server, "GET", f"/etc/passwd?{right}")[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        {},
        {"what": 1},
        {"what": "look", "more": 1},
        {"what": "look", "places": {"A": ""}},
    ],
)
def test_nonsense_is_refused(server: LiveServer, body: object) -> None:
    status, text, _ = ask(server, "POST", f"/do?token={server.token}", body)
    assert status == 400 and "not a request of this page" in text
    assert ask(server, "POST", f"/do?token={server.token}", {"what": "look"})[0] == 200


def test_a_port_that_is_taken_or_none_is_said(server: LiveServer) -> None:
    for port in (server.server_port, 70_000):
        with pytest.raises(SettingError, match=f"port {port} cannot be used"):
            LiveServer(server.live, port)


def test_the_page_asks_for_what_the_letters_of_lr_step_do() -> None:
    live = Live(a_script)
    said = live.do(Asked("verdict"))
    [side] = said["sides"]
    assert side["place"] == live.session.sides[0].place > 0
    assert side["data"]["race"] == side["data"]["tour"] == [], "not before the end"
    told = live.do(Asked("force", aligned=False))
    assert "will be: not aligned" in told["said"] and not told["forked"]
    forked = live.do(Asked("fork"))
    assert forked["forked"] and len(forked["sides"]) == 2
    live.do(Asked("force", side="B", node="0:1", aligned=True))
    ended = live.do(Asked("end"))
    assert not ended["forked"] and all(one["over"] for one in ended["sides"])
    texts = ["".join(t[1] for step in one["data"]["states"]["emitted"] for t in step["tokens"])
             for one in ended["sides"]]  # fmt: skip
    assert (
        texts == [side.state.text for side in live.session.sides]
        and texts[0] != texts[1]
    )
    assert "This is the end" in live.do(Asked("next"))["said"]
    assert len(live.do(Asked("drop"))["sides"]) == 1
    assert "cannot be asked for" in live.do(Asked("explode"))["said"]
    assert "no verdict" in live.do(Asked("force"))["said"]
    assert set(MOVES) == {"next", "step", "rejection", "verdict", "end"}


def test_it_goes_on_from_where_the_page_is() -> None:
    live = Live(a_script)
    end = live.do(Asked("end"))["sides"][0]["place"]
    assert live.do(Asked("next", places={"A": 2}))["sides"][0]["place"] < end
    assert live.do(Asked("look", places={"A": -5}))["sides"][0]["place"] == 0
    assert (
        live.do(Asked("look", places={"A": 10**9, "Z": 3}))["sides"][0]["place"] == end
    )
    fork = live.do(Asked("fork", places={"A": 3}))
    assert "made anew" in fork["said"], "of the past, as in lr step"


def test_a_question_that_is_refused_leaves_the_old_one() -> None:
    live = Live(a_script)
    live.do(Asked("verdict"))
    before = live.session
    assert (
        live.do(Asked("ask", question="what?"))["said"]
        == "'what?' is none of its questions."
    )
    assert live.session is before and before.active.place > 0
    assert live.do(Asked("ask"))["sides"][0]["place"] == 0
    assert live.session is not before


def test_a_page_is_sent_only_what_is_new() -> None:
    """So a step is as short a message at the end of a long answer as at its
    beginning."""
    texts = [f"Now there are {number} coins." for number in range(50)] + [
        "That is all$"
    ]
    run = partial(
        ScriptedRun, SchedulerConfig(Limits(5000), depth=2), TextScript(texts, texts)
    )
    live, made = Live(lambda question: ScriptSource(run)), {"number": 0}
    sizes = []
    while not sizes or not live.sent[0]["over"]:
        made = live.answer(Asked("step", seen=made["number"]))
        sizes.append(len(json.dumps(made["sides"])))
    for seen in (
        0,
        made["number"] - 1,
        made["number"] + 1,
    ):  # a new page, or a message was lost
        assert live.answer(Asked("look", seen=seen))["sides"] == [[live.sent[0]]]
    assert live.answer(Asked("look", seen=live.number))["sides"] == [{}]
    assert len(sizes) > 50 and max(sizes[1:-1]) < len(json.dumps(live.sent)) / 10
    first, second = live.answer(Asked("fork", seen=live.number))["sides"]
    assert "data" not in first and second == [live.sent[1]]


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ({"a": [1, 2], "b": 3}, {"a": [1, 5, 6], "b": 3}, {"a": [1, [5, 6]]}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, []]}),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": [2]}}, {"a": {"c": [[2]]}}),
        ({"a": 1, "b": 2}, {"a": 1}, [{"a": 1}]),
        ({"a": [1]}, {"a": None}, {"a": [None]}),
        ({"a": 1}, {"a": 1}, {}),
    ],
)
def test_what_is_new(old: object, new: object, change: object) -> None:
    assert news(old, new) == change and news(None, new) == [new]


def test_caches_come_back_after_the_last_side() -> None:
    """Otherwise every question would take memory and never return it."""
    reasoner = Reasoner(verifier="oracle")
    source = LiveSource(reasoner, QUESTION, OPTIONS)
    session, runners = Session(source), [runner for _, runner, _ in source.runners]
    session.go("verdict")
    session.fork()
    session.drop()
    assert all(runner.cache.pool.num_used for runner in runners)
    session.close()
    assert not any(runner.cache.pool.num_used for runner in runners)
    again = LiveSource(reasoner, QUESTION, OPTIONS)
    assert {id(runner) for _, runner, _ in again.runners} == {
        id(one) for one in runners
    }
    again.close()


def test_thinking_time_does_not_count() -> None:
    """Between two pieces of work the clock of the run stands still, on both sides of a
    fork."""
    now = [0.0]
    session = live_session()
    source = session.sides[0].source
    assert isinstance(source, LiveSource)
    trace = source.request.trace
    trace.clock, trace.start, source._rested = (lambda: now[0]), 0.0, 0.0
    for _ in range(12):
        session.go("next")
        now[0] += 1000
    session.fork()
    now[0] += 1000
    for _ in range(12):
        session.go("next")
        now[0] += 1000
    assert [side.records[-1].time for side in session.sides] == [0.0, 0.0]
    session.close()


def test_the_command_says_what_it_cannot_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = as_file(scripted(), tmp_path / "run.jsonl")
    assert main(["play", str(trace), "--port", "8000"]) == 2
    assert "nothing without --live" in capsys.readouterr().err
    for words, message in (
        ([str(trace)], "lr step takes a trace"),
        (["-o", "page.html"], "output"),
        (["What?"], "understands only the questions of its small language"),
        (["--mode", "ar"], "no draft steps"),
        (["--port", "70000"], "port is 70000, expected 0 (a free one) to 65535"),
    ):
        assert main(["play", "--live", *words]) == 2
        assert message in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-u", "-m", "lr", "play", "--live", QUESTION]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(
            r"http://127\.0\.0\.1:(\d+)(/\?token=\S+)", process.stdout.readline()
        )
        assert found is not None
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(found[1]), timeout=PATIENCE
        )
        connection.request("GET", found[2])
        assert (
            "How many coins does Ben have?" in connection.getresponse().read().decode()
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


# In a browser


class Window:
    """The page, and what went wrong in it."""

    def __init__(self, page: Any, server: LiveServer) -> None:
        self.page, self.live, self.faults = page, server.live, []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on(
            "console",
            lambda said: (
                said.type in ("error", "warning") and self.faults.append(said.text)
            ),
        )
        own = server.address.partition("?")[0]
        page.on(
            "request",
            lambda one: (
                one.url.startswith(own) or self.faults.append(f"wanted {one.url}")
            ),
        )
        page.goto(server.address)
        self.rests()

    def until(self, script: str) -> None:
        for _ in range(PATIENCE * 20):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came true: {script}")

    def rests(self) -> None:
        """Nothing is asked for, and the page has what the server has, news by news."""
        self.until("!player.live.asking")
        assert self.page.evaluate("player.live.sides.filter(Boolean)") == self.live.sent

    def press(self, name: str) -> None:
        self.page.click(name)
        self.rests()

    def text(self, name: str) -> str:
        return str(self.page.locator(name).inner_text())

    @property
    def place(self) -> tuple[int, int]:
        n, count = self.page.evaluate("[player.n, player.count]")
        return n, count


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as made:
        yield made


@contextmanager
def opened(browser: Any, width: int = 1366) -> Iterator[Window]:
    with served(Live(a_run, QUESTION)) as server:
        page = browser.new_page(
            viewport={"width": width, "height": 800}, reduced_motion="reduce"
        )
        window = Window(page, server)
        yield window
        page.close()
        assert window.faults == []


def test_a_problem_is_typed_drawn_and_run(browser: Any) -> None:
    with opened(browser) as window:
        assert window.page.input_value("#asked") == QUESTION == window.text("#question")
        window.press("#event-next")
        assert window.place[0] > 0
        window.press("#decision-next")
        assert window.page.locator("#steps .step").count() == 1
        window.page.select_option("#speed", "8")
        window.page.click("#play")
        window.until("player.states.emitted.length > 1")
        window.press("#play")
        rested = window.place
        window.page.wait_for_timeout(150)
        assert window.place == rested, "paused"
        window.page.keyboard.press("End")
        window.rests()
        window.page.keyboard.press("End")
        window.until("player.live.over && player.n === player.count")
        assert window.text("#now-text") == "The end of the answer"
        assert window.page.locator("#race .lane").count() == 2
        assert window.page.is_visible("#tour-open")
        window.press("#ask")
        assert window.text("#question") == OTHER and not window.page.is_visible(
            "#tour-open"
        )
        window.page.fill("#asked", QUESTION)
        window.page.keyboard.press("Enter")
        window.rests()
        assert window.text("#question") == QUESTION and window.place[0] == 0


def test_a_verdict_is_forced_and_both_sides_are_watched(browser: Any) -> None:
    with opened(browser) as window:
        page = window.page
        window.press("#verdict")
        assert page.locator("#due button").count() >= 2
        window.press("#fork")
        assert "nothing was computed or copied" in window.text("#told")
        assert page.is_visible("#tree-b") and page.is_visible("#answer-b")
        rows = page.locator("#cache .whose b").all_inner_texts()
        assert {row[:2] for row in rows} == {"A ", "B "}
        shared = page.locator("#cache .branch .block.shared").count()
        assert shared == page.locator("#cache .branch .block").count(), "all are, now"
        page.locator("#due span").last.locator("button").last.click()
        window.rests()
        assert "not aligned (forced by hand)" in window.text("#told")
        for _ in range(3):
            window.press("#decision-next")
        window.until("player.live.beside.states.emitted.length > 0")
        assert "forced by hand" in window.text("#answer-b")
        assert "forced by hand" not in window.text("#answer")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Home")
        assert page.evaluate("player.live.beside.n") == 0, "both go back together"
        window.press("#drop")
        assert not page.is_visible("#tree-b")
        assert page.locator("#cache .whose b").all_inner_texts()[:1] != ["A "]


def test_what_is_typed_is_text_and_no_key(browser: Any) -> None:
    with opened(browser) as window:
        nasty = 'What <img src=x onerror="window.struck = 1">?'
        window.page.fill("#asked", "")
        window.page.type("#asked", nasty + " fdt")
        window.page.keyboard.press("Enter")
        window.rests()
        assert window.page.evaluate(
            "window.struck === undefined && document.images.length === 0"
        )
        assert window.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert window.place[0] == 0 and not window.page.is_visible("#tree-b")


@pytest.mark.parametrize("width", [420, 1024, 1366, 1920])
def test_both_sides_fit(browser: Any, width: int) -> None:
    with opened(browser, width) as window:
        for name in ("#verdict", "#fork"):
            window.press(name)
        wide = "document.documentElement.scrollWidth"
        assert window.page.evaluate(wide) == width
        for name in (
            "#tree-panel",
            "#tree-b",
            "#answer-panel",
            "#answer-b",
            "#cache-panel",
        ):
            box = window.page.locator(name).bounding_box()
            assert (
                box["x"] >= 0
                and box["x"] + box["width"] <= width
                and box["height"] > 90
            )
        assert window.page.locator("#controls").bounding_box()["y"] < 800


def test_a_server_that_is_gone_is_said(browser: Any) -> None:
    with served(Live(a_script)) as server:
        page = browser.new_page()
        window = Window(page, server)
    window.press("#verdict")
    assert "There is no answer" in window.text("#told")
    page.close()
