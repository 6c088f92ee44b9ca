"""The slides of the lectures: at most fifteen, each a figure or a formula and one
sentence, without a network, and each fits its screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import slides
from player_kit import a_browser


@pytest.mark.parametrize("name", slides.LECTURES)
def test_a_lecture_is_short_and_needs_nothing_else(name: str) -> None:
    page = slides.page(name)
    assert page.count("<section") <= 15
    assert not re.findall(r"(?:src|@import|url|<link)\W+(?!data:)\w+:[^\s]*", page)
    for slide in slides.LECTURES[name][1]:
        assert slide.figure or slide.formula
        assert len(slide.sentence) < 100


def test_the_keys_turn_the_slides_and_each_fits_its_screen(tmp_path: Path) -> None:
    errors: list[str] = []
    with a_browser() as browser:
        for name in slides.LECTURES:
            path = tmp_path / f"{name}.html"
            path.write_text(slides.page(name), encoding="utf-8")
            page: Any = browser.new_page(viewport={"width": 1280, "height": 720})
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            count = page.evaluate("slides.length")
            for number in range(1, count + 1):
                assert page.inner_text("footer") == f"{number} / {count}"
                slide = "slides[now()]"
                tall = page.evaluate(f"{slide}.scrollHeight - {slide}.clientHeight")
                wide = page.evaluate(f"{slide}.scrollWidth - {slide}.clientWidth")
                assert tall <= 0 and wide <= 0, f"slide {number} of {name} is cut"
                page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowLeft")
            assert page.inner_text("footer") == f"{count - 1} / {count}" and not errors
