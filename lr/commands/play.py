"""`lr play`: a trace as a page to step through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lr.commands.show import console
from lr.lab.player.page import player_page, write_page
from lr.lab.trace.file import read_trace
from lr.lab.trace.film import state_at
from lr.types import require


@dataclass(frozen=True)
class Play:
    """Write one page that shows a trace event by event: the tree, the answer, the clock, the cache.
    It needs nothing but a browser.
    """

    trace: tyro.conf.Positional[Path]
    """A trace, as `--trace` writes it."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The page to write; by default the trace's name with the ending .html."""

    def run(self) -> None:
        trace = read_trace(self.trace)
        page = player_page(trace)
        output = self.output or self.trace.with_suffix(".html")
        state_at(
            trace, len(trace.records)
        )  # raises where lines are missing; the page would stay empty
        require(
            output.resolve() != self.trace.resolve(),
            "output",
            str(output),
            "another file than the trace itself",
        )
        write_page(page, output)
        for note in trace.notes:
            console(stderr=True).print(f"[dim]{self.trace}: {note}[/]")
        size = len(page.encode()) / 1e6
        console().print(
            f"written: {output} ({len(trace.records)} events, {size:.1f} MB); open it in a browser"
        )
