"""The slides of the lectures: each a figure, a formula or real steps under one sentence
with notes, without a network; each fits its screen; numbers are those of the figures."""

import re

import pytest
import slides
from watch_kit import a_browser

from lr.spec.protocol import Schedule


@pytest.mark.parametrize("name", slides.PAGES)
def test_a_page_needs_nothing_else(name):
    page = slides.PAGES[name]()
    assert page.count("<section") <= 17
    assert not re.findall(r"(?:src|@import|url|<link)\W+(?!data:)\w+:[^\s]*", page)


def test_the_numbers_that_are_spoken_are_the_figures():
    lectures = [lecture for _, lecture in slides.lectures().values()]
    spoken = "\n".join(slide.sentence for lecture in lectures for slide in lecture)
    barrier, window = map(slides.length, (Schedule.SYNC, Schedule.DEPTH))
    assert f"a barrier {barrier:.2f}" in spoken and f"without it {window:.2f}" in spoken
    assert window < barrier
    assert slides.order_of_schedules().split(" ≤ ")[::4] == ["sync", "no window"]
    with_draft, without = slides.passes_of_an_always_wrong_draft()
    assert with_draft == without and len(slides.measured()) > 4


SIZES = """[...slides].map((slide, number) => {
    show(number);
    return [slide.scrollHeight - slide.clientHeight, slide.scrollWidth - slide.clientWidth];
})"""
"""How far each slide is taller and wider than the screen."""


@pytest.mark.ci
def test_the_keys_turn_the_slides_and_each_fits_its_screen(tmp_path):
    errors = []
    with a_browser() as browser:
        for name in slides.lectures():
            path = tmp_path / f"{name}.html"
            path.write_text(slides.page(name), "utf-8")
            page = browser.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            for width, height in ((390, 844), (900, 700), (1366, 768)):
                page.set_viewport_size({"width": width, "height": height})
                for number, sizes in enumerate(page.evaluate(SIZES), start=1):
                    cut = f"slide {number} of {name} is cut at {width} px"
                    assert max(sizes) <= 0, cut
            count = page.evaluate("show(0), slides.length")
            for number in range(1, count + 1):
                assert page.inner_text("footer") == f"{number} / {count}"
                page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowLeft")
            assert page.inner_text("footer") == f"{count - 1} / {count}" and not errors
