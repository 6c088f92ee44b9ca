"""The player in a real browser: it loads without errors, shows the states that Python
computes, and each control does what it says.

One browser serves the module. Where there is none, the tests are skipped with the
reason; LR_BROWSER=required makes that a failure.
"""

from functools import cache

import pytest
from watch_kit import a_browser, nasty, run_of, scripted, tiny

from lr.watch.player.page import player_page
from lr.watch.words import is_rejection, summary


@cache
def bushy():
    """Width 3 and depth 2: up to thirteen nodes."""
    drafts = [f"The sum is {n}1.|So it is {n}2.|That makes {n}3." for n in range(1, 6)]
    targets = [f"The sum is {n}4." for n in range(1, 5)] + ["It is 55$"]
    return run_of(targets, drafts, depth=2, width=3)


@cache
def wordy():
    """Steps of some length, in which the last number decides."""
    first = "At first Ann holds seven coins, as the story tells us in its beginning."
    target = (
        "Then Ben gets three more coins than Ann, and so he holds 7 + 3 = 10 coins now."
    )
    steps = [first, target, "Answer 10$"]
    return run_of(steps, [s.upper().replace("= 10", "= 11") for s in steps], depth=3)


TRACES = {
    "scripted": scripted,
    "tiny": lambda: tiny("lr+sd"),
    "plain": lambda: tiny("sd"),
    "nasty": nasty,
    "wordy": wordy,
    "bushy": bushy,
}
NAMELESS = """[...document.querySelectorAll('button, select, input, [role=img]')]
  .filter(e => !e.getAttribute('aria-label') && !e.title && !e.textContent.trim())
  .filter(e => e.getAttribute('aria-hidden') !== 'true').map(e => e.id)"""
BOXES = """[...document.querySelectorAll('.node:not(.ghost)')].map(e => [
  e.offsetLeft, e.offsetTop, e.offsetLeft + e.offsetWidth, e.offsetTop + e.offsetHeight])"""
CUT = """[...document.querySelectorAll('.rejected .words, .asked .words, #steps .body')]
  .filter(e => e.scrollHeight > e.clientHeight + 2 || e.scrollWidth > e.clientWidth + 2)
  .map(e => e.textContent)"""
FULLEST = """() => {
  let best = [0, 0];
  for (let n = 1; n <= player.count; n += 1) {
    const live = player.states.treeAt(player.states.rootAt(n), n);
    const size = (tree) => tree ? 1 + tree.kids.reduce((sum, kid) => sum + size(kid), 0) : 0;
    if (size(live) > best[0]) best = [size(live), n];
  }
  player.go(best[1]);
  return best[0];
}"""


class Window:
    """Opens pages, and remembers what went wrong in them and what they wanted from
    outside."""

    def __init__(self, browser, folder):
        self.browser = browser
        self.folder = folder
        self.faults = []
        self.pages = {}

    def open(self, name, address="#event=0", *, width=1366, height=768):
        path = self.folder / f"{name}.html"
        if not path.exists():
            path.write_text(player_page(TRACES[name]()), "utf-8")
        if (width, height) not in self.pages:
            context = self.browser.new_context(
                viewport={"width": width, "height": height}, reduced_motion="reduce"
            )
            self.pages[width, height] = context.new_page()
            self._watch(self.pages[width, height])
        page = self.pages[width, height]
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}{address}")
        return page

    def _watch(self, page):
        def console(message):
            if message.type in ("error", "warning"):
                self.faults.append(message.text)

        def request(request):
            if not request.url.startswith(("file:", "about:", "data:")):
                self.faults.append(f"wanted {request.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", request)


@pytest.fixture(scope="module")
def all_windows(tmp_path_factory):
    with a_browser() as browser:
        yield Window(browser, tmp_path_factory.mktemp("player"))


@pytest.fixture
def window(all_windows):
    all_windows.faults.clear()
    yield all_windows
    assert all_windows.faults == []


def event(page):
    return int(page.evaluate("document.body.dataset.event"))


def text(page, name):
    return str(page.locator(f"#{name}").inner_text())


def decisions(trace):
    return [record.number + 1 for record in trace.records if record.kind == "emit"]


def rejections(trace):
    return [record.number + 1 for record in trace.records if is_rejection(record)]


@pytest.mark.parametrize("name", ["tiny", "plain", "nasty"])
def test_every_trace_opens_with_the_statistics_of_python(window, name):
    page = window.open(name)
    trace = TRACES[name]()
    assert text(page, "stats") == summary(trace.stats, trace.header.unit)


def test_the_first_sight_is_a_rejection_and_play_starts_anew(window):
    page = window.open("scripted", "")
    assert event(page) == rejections(scripted())[0]
    assert page.locator("#tree .card.rejected").count() >= 1
    page.select_option("#speed", "0.1")
    page.click("#play")
    page.wait_for_function("document.body.dataset.event < 5")
    page.click("#play")
    paused = event(page)
    page.wait_for_timeout(120)
    assert event(page) == paused
    page.select_option("#speed", "8")
    page.evaluate("player.go(player.count - 2)")
    page.click("#play")
    page.wait_for_function("!player.playing")
    assert event(page) == len(scripted().records)


def test_buttons_and_keys_move(window):
    page = window.open("scripted")
    trace = scripted()
    page.select_option("#grain", "0")
    page.evaluate("document.activeElement.blur()")
    for key, expected in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("Shift+ArrowRight", decisions(trace)[0]),
        ("End", len(trace.records)),
        ("Shift+ArrowLeft", decisions(trace)[-1]),
        ("Home", 0),
        ("r", rejections(trace)[0]),
    ]:
        page.keyboard.press(key)
        assert event(page) == expected, key
    page.click("#rejection-next")
    assert "not aligned" in text(page, "now-text")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")


@pytest.mark.parametrize("name", ["scripted", "nasty"])
def test_a_phone_does_not_scroll_sideways(window, name):
    page = window.open(name, "#event=60", width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for button in ("play", "event-next", "rejection-next"):
        box = page.locator(f"#{button}").bounding_box()
        assert 0 <= box["x"] <= 360 - box["width"]
        assert box["y"] + box["height"] <= 740  # in sight without scrolling
        assert box["height"] >= 36  # big enough for a thumb


def test_the_tour_goes_by_keys_and_addresses(window):
    page = window.open("tiny", "#tour=1", width=420)
    stops = page.evaluate("player.states.tour.map(stop => [stop.event, stop.title])")
    assert len(stops) >= 6
    for number, (at, title) in enumerate(stops, 1):
        assert event(page) == at
        assert page.text_content("#now-text") == f"{number} of {len(stops)}: {title}"
        assert page.evaluate("location.hash") == f"#tour={number}"
        caption = page.locator("#now").bounding_box()
        panel = page.locator(".panel.lit").bounding_box()
        assert panel["y"] >= caption["y"] + caption["height"]  # not covered
        page.keyboard.press("ArrowRight")
    assert page.locator(".panel.lit").count() == 0  # after the last stop it is over


@pytest.mark.parametrize(
    "name, width",
    [("bushy", 420), ("bushy", 1366), ("wordy", 420), ("wordy", 1920)],
)
def test_trees_fit_and_keep_their_numbers(window, name, width):
    """Every box of a large screen is in sight, none covers another, and what decides is
    never cut."""
    page = window.open(name, width=width, height=768 if width < 1900 else 1080)
    page.evaluate(FULLEST)
    boxes = page.evaluate(BOXES)
    assert len(boxes) >= 2
    for i, (left, top, right, bottom) in enumerate(boxes):
        for x, y, x2, y2 in boxes[:i]:
            assert right <= x or x2 <= left or bottom <= y or y2 <= top
    if width >= 1000:
        field = "document.querySelector('.field').offsetHeight"
        room = "document.getElementById('tree').clientHeight"
        assert page.evaluate(f"{field} <= {room} + 12")
    for number in rejections(TRACES[name]()):
        page.evaluate("n => player.go(n)", number)
        assert page.evaluate(CUT) == []
        assert page.locator(".card.rejected:visible").count()


def test_every_control_has_a_name_and_shows_its_focus(window):
    page = window.open("tiny", "#event=120")
    assert page.evaluate(NAMELESS) == []
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"


def test_texts_of_a_trace_do_nothing(window):
    page = window.open("nasty", "#event=9999")
    assert page.evaluate("window.struck === undefined && document.images.length === 0")
    assert "</script>" in text(page, "question")
