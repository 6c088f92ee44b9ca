"""Draws docs/figures/player.png, the moving player.gif of the README
and the other figures of docs/player.md: one answer of the tiny models, in the player
and as clock and tree.

    python scripts/draw_player.py

The answer is the same every time; its times are those of this machine. Wants
matplotlib, playwright and an installed Chromium (the extra `dev` has the first two).
The page that is photographed is that of `lr play`, at the first rejection, as in the
drawn tree; the moving picture is its guided tour.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from lr.commands.cli import main
from lr.registry import SAMPLE_QUESTION
from lr.watch.figures.clock import timeline_figure
from lr.watch.figures.style import write
from lr.watch.figures.tree import tree_figure
from lr.watch.player.story import tour_of
from lr.watch.trace.file import read_trace
from lr.watch.trace.state import state_at
from lr.watch.words import is_rejection

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SECONDS_PER_STOP = 4
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def laptop() -> Iterator[Any]:
    """A browser's window of a laptop's size."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        window = opened.new_page(
            viewport={"width": 1440, "height": 860},
            color_scheme="light",
            reduced_motion="reduce",
        )
        yield window
        opened.close()


def photograph(page: Path, places: dict[str, Path]) -> None:
    """The player's page at each address (`event=20`, `tour=1`)."""
    with laptop() as window:
        for address, picture in places.items():
            window.goto("about:blank")
            window.goto(f"{page.as_uri()}#{address}")
            window.screenshot(path=picture)


def moving(pictures: list[Path], into: Path) -> None:
    """Pictures as one moving picture, smaller and in few colours."""
    frames = [
        Image.open(picture).convert("RGB").resize((840, 502)) for picture in pictures
    ]
    frames = [picture.quantize(40, dither=Image.Dither.NONE) for picture in frames]
    frames[0].save(
        into,
        save_all=True,
        append_images=frames[1:],
        duration=1000 * SECONDS_PER_STOP,
        loop=0,
    )


def run(command: list[str]) -> None:
    """A command of `lr`, which has to succeed."""
    if main(command) != 0:
        sys.exit(f"lr {' '.join(command)} failed")


def draw() -> None:
    """Make the trace, the page and the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.jsonl"
        run(["generate", SAMPLE_QUESTION, "--trace", str(file)])
        run(["play", str(file), "-o", str(file.with_suffix(".html"))])
        trace = read_trace(file)
        event = next(filter(is_rejection, trace.records)).number + 1
        write(timeline_figure(trace), FIGURES / "answer-timeline.png")
        write(tree_figure(state_at(trace, event)), FIGURES / "answer-tree.png")
        stops = range(1, 1 + len(tour_of(trace)))
        tour = {f"tour={n}": Path(folder) / f"{n}.png" for n in stops}
        still = {f"event={event}": FIGURES / "player.png"}
        photograph(file.with_suffix(".html"), still | tour)
        moving(list(tour.values()), FIGURES / "player.gif")


if __name__ == "__main__":
    draw()
