"""`lr draw`: the clock, the tree and the cache of a trace as figures for slides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lr.commands.show import console
from lr.errors import SettingError
from lr.lab.trace.file import read_trace
from lr.lab.trace.film import Film
from lr.lab.viz.holders import cache_figure, sharing_moment
from lr.lab.viz.moment import telling_moment, tree_figure
from lr.lab.viz.style import require_matplotlib, write
from lr.lab.viz.timeline import timeline_figure

PICTURES = ("timeline", "tree", "cache")


@dataclass(frozen=True)
class Draw:
    """Draw a trace as SVG and PNG: who worked when, the tree at one moment, who held which block.
    Needs matplotlib (the extra `plot`).
    """

    trace: tyro.conf.Positional[Path]
    """A trace, as `--trace` writes it."""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """How the files' names begin, such as slides/run for slides/run-tree.svg; by default the
    trace's name without its ending.
    """
    pictures: tuple[str, ...] = PICTURES
    """Which: timeline, tree, cache."""
    event: int | None = None
    """Tree and cache after so many events; by default where there is most to see: the tree before
    the first correction, the cache where most blocks are shared."""

    def run(self) -> None:
        require_matplotlib()
        for name in self.pictures:
            if name not in PICTURES:
                raise SettingError(
                    f"pictures has {name!r}; expected some of {', '.join(PICTURES)}."
                )
        trace = read_trace(self.trace)
        if self.event is not None and not 0 <= self.event <= len(trace.records):
            raise SettingError(
                f"event is {self.event}; this trace has events 0 to {len(trace.records)}."
            )
        start = self.output or self.trace.with_suffix("")
        if not start.parent.is_dir():
            raise SettingError(
                f"output is {str(start)!r}, but there is no folder {start.parent}; create it first."
            )
        film, out = Film(trace), console()
        for name in self.pictures:
            path = start.with_name(f"{start.name}-{name}.png")
            if name == "cache" and not trace.header.caches:
                out.print("no cache: this trace has no blocks to draw")
                continue
            if name == "timeline":
                figure = timeline_figure(trace)
            elif name == "tree":
                figure = tree_figure(
                    film, telling_moment(film) if self.event is None else self.event
                )
            else:
                figure = cache_figure(
                    film, sharing_moment(film) if self.event is None else self.event
                )
            with figure as made:
                for written in write(made, path):
                    out.print(f"drawn: {written}")
