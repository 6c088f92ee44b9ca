"""The slides of the lectures: made from the notebooks, no network, each fits its
screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from player_kit import a_browser
from tests_root import ROOT


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("slides")
    command = [sys.executable, str(ROOT / "scripts" / "slides.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return [folder / "first.html", folder / "second.html"]


def test_a_page_needs_nothing_else_and_has_every_cell_that_is_marked(
    pages: list[Path],
) -> None:
    first, second = (page.read_text("utf-8") for page in pages)
    for text in (first, second):
        loads = re.findall(r"(?:src|@import|url|<link)\W+(?!data:)\w+:[^\s]*", text)
        assert not loads and "$$" not in text and "<math" in text and "](" not in text
        assert all(re.findall(r"<section[^>]*>(.+?)</section>", text, re.DOTALL))
    assert (
        "def rolling" in re.sub(r"<[^>]+>", "", first)
        and "How fast can it get?" in second
    )
    assert "<h2>3. Residual</h2>" in first and "Rules that are wrong" not in first
    assert second.count("<img") >= 10


def test_the_keys_turn_the_slides_and_each_fits_its_screen(pages: list[Path]) -> None:
    errors: list[str] = []
    with a_browser() as browser:
        for path in pages:
            page: Any = browser.new_page(viewport={"width": 1280, "height": 720})
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(path.as_uri())
            count = page.evaluate("slides.length")
            for number in range(1, count + 1):
                assert page.inner_text("footer") == f"{number} / {count}"
                one = "slides[now()]"
                tall = page.evaluate(f"{one}.scrollHeight - {one}.clientHeight")
                wide = page.evaluate(f"{one}.scrollWidth - {one}.clientWidth")
                assert tall <= 0 and wide <= 0, f"slide {number} of {path.name} is cut"
                page.keyboard.press("ArrowRight")
            assert page.inner_text("footer") == f"{count} / {count}" and not errors
            page.keyboard.press("ArrowLeft")
            assert page.inner_text("footer") == f"{count - 1} / {count}"
