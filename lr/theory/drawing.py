"""How figures of theory are drawn and written: one style, PNG and SVG, the same data giving the same file.

The only module of the room that wants matplotlib (the extra `plot`), and only when something is drawn. What is drawn is computed in
`curves.py` and `reality.py`. Read next: `curves.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError

COLOURS = ("#c44e00", "#0066aa", "#2f855a", "#6b46c1", "#b7791f", "#4a5568")
INK, GRID = "#222222", "#dddddd"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "lr theory",
    "svg.fonttype": "path",
}


def require_matplotlib() -> None:
    """Raises `SettingError` where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise SettingError(
            'a figure needs matplotlib, which is not installed: pip install "lookahead-reasoning[plot]".'
        )


@contextmanager
def figure(width: float, height: float) -> Iterator[Any]:
    """An empty matplotlib figure of that many inches, in our style while the block lasts."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def write(made: Any, path: Path) -> list[Path]:
    """Write a figure to `path` with its ending replaced by .png and by .svg; returns both. Call it inside of `figure`."""
    written = [path.with_suffix(".png"), path.with_suffix(".svg")]
    made.savefig(written[0], dpi=150, metadata={"Software": None})
    made.savefig(written[1], metadata={"Date": None})
    return written


def draw_reality(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Measured speedups with error bars, the closed form and the fully refined twin, way by way; from what `lr theory reality` writes."""
    rows = document["rows"]
    with figure(max(6.4, 0.42 * len(rows) + 2.5), 4.4) as made:
        axes = made.subplots()
        places = range(len(rows))
        axes.axhline(1, color=INK, lw=0.8)
        axes.plot(
            places, [row["predicted"][0] for row in rows], "_", color=COLOURS[0], ms=14, mew=2, label="closed form"
        )
        axes.plot(
            places, [row["predicted"][-1] for row in rows], "_", color=COLOURS[1], ms=14, mew=2, label="simulated twin"
        )
        axes.errorbar(
            places,
            [row["measured"] for row in rows],
            yerr=[2 * row["error"] for row in rows],
            color=INK,
            fmt="o",
            ms=4,
            capsize=3,
            label="measured, ± 2 standard errors",
        )
        axes.set_xticks(list(places), [row["way"] for row in rows], rotation=60, ha="right")
        axes.set(ylabel="speedup over plain decoding", ylim=(0, None))
        axes.set_title(f"{document['calibration']}: predicted and measured", fontsize=11)
        axes.legend(loc="upper left", fontsize=9, ncols=3)
        return write(made, path)
