"""How figures of theory are drawn: in the style of all figures (`lab/viz/style.py`), with the
colours of its curves.

It wants matplotlib (the extra `plot`), and only when something is drawn. What is drawn is computed
in `curves.py` and `reality.py`. Read next: `curves.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lr.lab.viz.style import INK, require_matplotlib, write
from lr.lab.viz.style import figure as styled

__all__ = ["COLOURS", "INK", "draw_reality", "figure", "require_matplotlib", "write"]

COLOURS = ("#c44e00", "#0066aa", "#2f855a", "#6b46c1", "#b7791f", "#4a5568")


def figure(width: float, height: float) -> AbstractContextManager[Any]:
    """An empty matplotlib figure of that many inches, in the style of all figures while the block
    lasts.
    """
    return styled(width, height, salt="lr theory")


def draw_reality(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Measured speedups with error bars, the closed form and the fully refined twin, way by way;
    from what `lr theory reality` writes.
    """
    rows = document["rows"]
    with figure(max(6.4, 0.42 * len(rows) + 2.5), 4.4) as made:
        axes = made.subplots()
        places = range(len(rows))
        axes.axhline(1, color=INK, lw=0.8)
        axes.plot(
            places,
            [row["predicted"][0] for row in rows],
            "_",
            color=COLOURS[0],
            ms=14,
            mew=2,
            label="closed form",
        )
        axes.plot(
            places,
            [row["predicted"][-1] for row in rows],
            "_",
            color=COLOURS[1],
            ms=14,
            mew=2,
            label="simulated twin",
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
