"""The player in a real browser: it loads without errors, shows the states that Python
computes, and each control does what it says.

One browser serves the module. Where there is none, the tests are skipped with the
reason; LR_BROWSER=required makes that a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from player_kit import (
    a_browser,
    bushy,
    long,
    nasty,
    scripted,
    simulated,
    synchronous,
    tiny,
    wordy,
)

from lr.watch.player.page import headline_of, player_page
from lr.watch.trace.state import state_at

TRACES = {
    "scripted": scripted,
    "synchronous": synchronous,
    "simulated": simulated,
    "tiny": lambda: tiny("lr+sd"),
    "plain": lambda: tiny("sd"),
    "long": long,
    "nasty": nasty,
    "wordy": wordy,
    "bushy": bushy,
}
NAMELESS = """[...document.querySelectorAll('button, select, input, [role=img]')]
  .filter(e => !e.getAttribute('aria-label') && !e.title && !e.textContent.trim())
  .filter(e => e.getAttribute('aria-hidden') !== 'true').map(e => e.id)"""
OUTLINE = """(() => {
  const style = getComputedStyle(document.activeElement);
  return [style.outlineStyle, parseFloat(style.outlineWidth)];
})()"""
STATISTICS = """[...document.querySelectorAll('#stats div')]
  .map(e => [...e.children].map(c => c.textContent))"""
BOXES = """[...document.querySelectorAll('.node:not(.ghost)')].map(e => [
  e.offsetLeft, e.offsetTop, e.offsetLeft + e.offsetWidth, e.offsetTop + e.offsetHeight])"""
CUT = """[...document.querySelectorAll('.rejected .words, .asked .words, #steps .body')]
  .filter(e => e.scrollHeight > e.clientHeight + 2 || e.scrollWidth > e.clientWidth + 2)
  .map(e => e.textContent)"""
SEEKS = """Array.from({length: 15}, (_, i) => {
  player.go((i * 7919) % player.count); return player.worked; })"""


class Window:
    """Opens pages, and remembers what went wrong in them and what they wanted from
    outside."""

    def __init__(self, browser: Any, folder: Any) -> None:
        self.browser, self.folder = browser, folder
        self.faults: list[str] = []
        self.contexts: dict[tuple[Any, ...], Any] = {}

    def open(
        self,
        name: str,
        hash_: str = "",
        *,
        width: int = 1366,
        height: int = 768,
        theme: str = "light",
    ) -> Any:
        path = self.folder / f"{name}.html"
        if not path.exists():
            path.write_text(player_page(TRACES[name]()), "utf-8")
        key = (width, height, theme)
        if key not in self.contexts:
            size = {"width": width, "height": height}
            context = self.browser.new_context(
                viewport=size, color_scheme=theme, reduced_motion="reduce"
            )
            self.contexts[key] = context.new_page()
            self.watch(self.contexts[key])
        page = self.contexts[key]
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}{hash_}")
        return page

    def watch(self, page: Any) -> None:
        page.on(
            "console",
            lambda said: (
                said.type in ("error", "warning") and self.faults.append(said.text)
            ),
        )
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        outside = ("file:", "about:", "data:")
        page.on(
            "request",
            lambda one: (
                one.url.startswith(outside) or self.faults.append(f"wanted {one.url}")
            ),
        )


@pytest.fixture(scope="module")
def all_windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    with a_browser() as browser:
        yield Window(browser, tmp_path_factory.mktemp("player"))


@pytest.fixture
def window(all_windows: Window) -> Iterator[Window]:
    all_windows.faults.clear()
    yield all_windows
    assert all_windows.faults == [], (
        "errors or warnings in the console, or requests to the network"
    )


def event(page: Any) -> int:
    return int(page.evaluate("document.body.dataset.event"))


def text(page: Any, name: str) -> str:
    return str(page.locator(f"#{name}").inner_text())


@pytest.mark.parametrize("name", TRACES)
def test_statistics_are_those_of_python(window: Window, name: str) -> None:
    page = window.open(name)
    shown = page.evaluate(STATISTICS)
    assert shown == [[label, value] for label, value, _ in headline_of(TRACES[name]())]


def test_texts_of_a_trace_do_nothing(window: Window) -> None:
    page = window.open("nasty", "#event=9999")
    assert page.evaluate("window.struck === undefined && document.images.length === 0")
    assert "</script>" in text(page, "question")
    assert "<b>" in text(page, "steps").lower()


def test_buttons(window: Window) -> None:
    page, trace = window.open("scripted"), scripted()
    decisions = [one.number + 1 for one in trace.records if one.kind == "emit"]
    refused = [
        one.number + 1
        for one in trace.records
        if one.kind == "judged" and not one.data["verdict"]["aligned"]
    ]
    page.select_option("#grain", "0")
    page.click("#event-next")
    page.click("#event-next")
    assert event(page) == 2
    page.click("#event-back")
    assert event(page) == 1
    page.click("#decision-next")
    assert event(page) == decisions[0]
    assert "Step 0 of the answer" in text(page, "now-text")
    page.click("#decision-next")
    page.click("#decision-back")
    assert event(page) == decisions[0]
    page.evaluate("player.go(0)")
    page.click("#rejection-next")
    assert event(page) == refused[0]
    assert "not aligned" in text(page, "now-text")
    page.select_option("#grain", "2")
    for _ in range(4):
        page.click("#event-next")
        assert trace.records[event(page) - 1].kind not in ("written", "release")


def test_play_pause_and_speed(window: Window) -> None:
    page = window.open("scripted")
    page.select_option("#speed", "8")
    page.click("#play")
    assert page.get_attribute("#play", "aria-label") == "Pause"
    page.wait_for_function("document.body.dataset.event > 3")
    page.click("#play")
    rested = event(page)
    assert page.get_attribute("#play", "aria-label") == "Play"
    page.wait_for_timeout(120)
    assert event(page) == rested
    page.evaluate("player.go(player.count - 2)")
    page.click("#play")
    page.wait_for_function("!player.playing")
    assert event(page) == len(scripted().records), "it stops at the end"
    page.click("#play")
    assert event(page) < len(scripted().records), "and begins anew"
    page.click("#play")


def test_scrubbing(window: Window) -> None:
    page, count = window.open("scripted"), len(scripted().records)
    page.fill("#scrub", str(count // 2))
    assert event(page) == count // 2
    box = page.locator("#timeline").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    assert event(page) == count
    assert page.evaluate("player.time") == pytest.approx(
        scripted().records[-1].time, rel=0.02
    )


def test_keys(window: Window) -> None:
    page, trace = window.open("scripted"), scripted()
    decisions = [one.number + 1 for one in trace.records if one.kind == "emit"]
    page.select_option("#grain", "0")
    page.evaluate("document.activeElement.blur()")
    for key, expected in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("Shift+ArrowRight", decisions[0]),
        ("End", len(trace.records)),
        ("Shift+ArrowLeft", decisions[-1]),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        assert event(page) == expected, key
    page.keyboard.press("r")
    assert "not aligned" in text(page, "now-text")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#speed") == "2"
    page.keyboard.press("Space")
    assert page.evaluate("player.playing")
    page.keyboard.press("Space")
    assert not page.evaluate("player.playing")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_deep_links(window: Window) -> None:
    page = window.open("scripted", "#event=17")
    assert event(page) == 17
    page.select_option("#grain", "0")
    page.click("#event-next")
    assert page.url.endswith("#event=18")
    page.evaluate("location.hash = '#event=5'")
    page.wait_for_function("document.body.dataset.event === '5'")
    assert event(window.open("scripted", "#event=999999")) == len(scripted().records)
    assert event(window.open("scripted", "#event=x")) == 0


def test_light_and_dark(window: Window) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = window.open("scripted"), window.open("scripted", theme="dark")
    colours = light.evaluate(ground), dark.evaluate(ground)
    assert colours[0] != colours[1]
    light.click("#theme")
    assert light.evaluate(ground) == colours[1]
    light.keyboard.press("d")
    assert light.evaluate(ground) == colours[0]


@pytest.mark.parametrize("name", ["scripted", "simulated", "tiny", "long", "nasty"])
def test_a_phone_does_not_scroll_sideways(window: Window, name: str) -> None:
    page = window.open(name, "#event=60", width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for button in ("play", "event-next", "rejection-next"):
        box = page.locator(f"#{button}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert box["y"] + box["height"] <= 740, "in sight without scrolling"
        assert box["height"] >= 36, "big enough for a thumb"


def test_a_projector_shows_all_at_once(window: Window) -> None:
    page = window.open("tiny", "#event=200", width=1920, height=1080)
    assert page.evaluate("document.documentElement.scrollHeight") <= 1080
    assert (
        page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)")
        >= 18
    )
    for panel in ("tree", "answer", "timeline", "cache"):
        assert page.locator(f"#{panel}-panel").bounding_box()["height"] > 150, panel
    page.click("#text-size")
    assert (
        page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)")
        >= 21
    )


def test_panels_show_the_state(window: Window) -> None:
    page, trace = window.open("scripted"), scripted()
    first = next(
        one.number + 1
        for one in trace.records
        if one.kind == "emit" and one.data["origin"] == "correction"
    )
    page.evaluate("n => player.go(n - 1)", first)
    live = {node.name for node in state_at(trace, first - 1).live}
    boxes = page.evaluate(
        "[...document.querySelectorAll('.node:not(.ghost) .name span')].map(e => e.textContent)"
    )
    assert {
        box.removeprefix("node ") for box in boxes if box.startswith("node")
    } <= live
    page.evaluate("n => player.go(n)", first)
    step = page.locator("#steps .step").last
    assert "correction" in step.inner_text()
    assert step.locator(".replaced").is_visible()
    assert page.locator(".node.ghost").count() > 0, (
        "what was cancelled is still there, paler"
    )
    page.evaluate("n => player.go(n, player.states.timeAt(n) + 1e6)", first)
    assert page.locator(".node.ghost").count() == 0, "and after a while it is not"
    page.evaluate("player.go(player.count)")
    assert page.locator("#steps .step").count() == 5


def test_tokens_caches_and_switches(window: Window) -> None:
    page = window.open("tiny", "#event=99999")
    page.click("#decision-back")
    kinds = page.evaluate(
        "[...new Set([...document.querySelectorAll('.token')].map(e => e.className))].join(' ')"
    )
    assert "by-draft" in kinds + " by-draft"
    tabs = page.locator("#cache-tabs button")
    assert tabs.all_inner_texts() == ["draft", "target", "drafter"] or tabs.count() == 3
    page.get_by_role("button", name="drafter").click()
    assert page.evaluate("player.cache.chosen") == "drafter"
    assert "drafter's cache" in str(page.get_attribute("#cache", "aria-label"))
    page.keyboard.press("c")
    assert page.evaluate("player.cache.chosen") != "drafter"
    page.click("#show-refused")
    assert page.evaluate("document.body.classList.contains('hide-refused')")
    before = page.evaluate("player.clock.span")
    page.click("#zoom-in")
    assert page.evaluate("player.clock.span") == pytest.approx(before / 2)
    page.click("#zoom-all")
    assert page.evaluate("player.clock.span") == page.evaluate(
        "player.clock.end - player.clock.start"
    )


@pytest.mark.parametrize("width", [1024, 1366])
def test_what_decides_is_never_cut(window: Window, width: int) -> None:
    trace = TRACES["wordy"]()
    page = window.open("wordy", width=width)
    judged = [one for one in trace.records if one.kind == "judged"]
    assert any(not one.data["verdict"]["aligned"] for one in judged)
    for one in judged:
        page.evaluate("n => player.go(n)", one.number + 1)
        assert page.evaluate(CUT) == []
        rejected = page.locator(".card.rejected:visible").count()
        assert (
            rejected
            or one.data["verdict"]["aligned"]
            or not page.locator(".node.root").count()
        )


def test_boxes_do_not_overlap(window: Window) -> None:
    page = window.open("tiny", width=1024)
    for number in range(20, 640, 40):
        page.evaluate("n => player.go(n)", number)
        found = page.evaluate(BOXES)
        for i, (left, top, right, bottom) in enumerate(found):
            for x, y, x2, y2 in found[:i]:
                assert right <= x or x2 <= left or bottom <= y or y2 <= top


def test_a_run_without_a_cache_has_no_panel_for_it(window: Window) -> None:
    assert not window.open("simulated").locator("#cache-panel").is_visible()
    assert window.open("tiny").locator("#cache-panel").is_visible()


def test_everything_explains_itself(window: Window) -> None:
    page = window.open("tiny", "#event=120")
    page.hover("#tree-panel .why")
    assert "root" in text(page, "tip")
    page.hover(".card.draft .head >> nth=0")
    assert "step" in text(page, "tip")
    page.hover("#cache .block >> nth=0")
    assert "Block" in text(page, "tip")
    page.hover("#timeline .bar >> nth=0")
    assert "draft step 0" in text(page, "tip")


def test_names_for_those_who_do_not_see(window: Window) -> None:
    page = window.open("tiny", "#event=120")
    assert page.evaluate(NAMELESS) == []
    page.keyboard.press("Tab")
    style, wide = page.evaluate(OUTLINE)
    assert style != "none"
    assert wide >= 2


def test_ten_thousand_events_stay_smooth(window: Window) -> None:
    """Bounds far above what is measured (a seek about 10 ms, a frame about 3 ms), so
    that only a change of order fails: work that grows with the length of the trace."""
    assert len(long().records) >= 10_000
    page = window.open("long", "#event=0")
    seeks = page.evaluate(SEEKS)
    frames = page.evaluate(
        "Array.from({length: 60}, (_, i) => { player.go(6000 + i); return player.worked; })"
    )
    assert sorted(seeks)[len(seeks) // 2] < 250
    assert sorted(frames)[len(frames) // 2] < 50
    assert page.locator("#steps .step").count() <= 30, (
        "only the last steps are in the page"
    )
    page.click(".earlier")
    assert page.locator("#steps .step").count() > 200


def test_the_tour_goes_by_keys_and_addresses(window: Window) -> None:
    page = window.open("tiny", "#tour=1")
    stops = page.evaluate("player.states.tour.map(stop => [stop.event, stop.title])")
    assert len(stops) >= 6
    for number, (event, title) in enumerate(stops, 1):
        assert page.evaluate("player.n") == event
        assert page.text_content("#now-text") == f"{number} of {len(stops)}: {title}"
        assert page.evaluate("location.hash") == f"#tour={number}"
        assert page.locator(".panel.lit").count() == 1
        page.keyboard.press("ArrowRight")
    assert page.locator(".panel.lit").count() == 0  # after the last stop it is over
    page.click("#tour-open")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("player.n") == stops[0][0]
    page.keyboard.press("Escape")
    assert page.evaluate("location.hash") == f"#event={stops[0][0]}"


def test_the_race_has_two_clocks(window: Window) -> None:
    page = window.open("tiny")
    page.keyboard.press("End")
    clocks = page.evaluate("player.data.race")
    assert [clock["name"] for clock in clocks] == ["this machine", "rows are free"]
    for clock in clocks:
        here, plain = clock["run"][-1], clock["plain"][-1]
        how = "fast" if plain >= here else "slow"
        factor = max(here, plain) / min(here, plain)
        assert page.text_content("#race p") == (
            f"in the end {factor:.2f} times as {how} as plain decoding"
        )
        assert (
            page.locator("#race i.ran").count() == 2 * len(clock["run"]) or plain > here
        )
        page.click("#race-clock")
    assert "GPU" in clocks[1]["costs"] and "paper" in clocks[1]["costs"]


@pytest.mark.parametrize("width", [420, 1024, 1366, 1920])
def test_wide_trees_fit_and_keep_their_numbers(window: Window, width: int) -> None:
    """At width 3 every box of a large screen is in sight, and each names its result."""
    page = window.open("bushy", width=width, height=768 if width < 1900 else 1080)
    most = page.evaluate("""() => {
      let best = [0, 0];
      for (let n = 1; n <= player.count; n += 1) {
        const live = player.states.treeAt(player.states.rootAt(n), n);
        const size = (tree) => tree ? 1 + tree.kids.reduce((sum, kid) => sum + size(kid), 0) : 0;
        if (size(live) > best[0]) best = [size(live), n];
      }
      player.go(best[1]);
      return best[0];
    }""")
    assert most >= 8
    field, box = "document.querySelector('.field')", "document.getElementById('tree')"
    if width >= 1000:
        assert page.evaluate(f"{field}.offsetHeight <= {box}.clientHeight + 12")
    assert page.evaluate(CUT) == []
