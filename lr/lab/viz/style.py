"""How all pictures look and are written: one palette, one style, PNG and SVG, the same data giving
the same file.

    with figure(9.6, 4.2) as made:
        made.subplots().plot(...)
        write(made, Path("docs/figures/some.png"))

The colours of the roles are those of the player (`player/style.css`; a test compares them): blue
for the draft, vermilion for the target, purple for the verifier, green for what is kept, told apart
by the colour-blind too; no picture relies on colour alone. matplotlib (the extra `plot`) is
imported when something is drawn; this module needs nothing else. Read next: `timeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError

INK, SOFT, GRID, PAPER = "#222222", "#5b6472", "#dddddd", "#ffffff"
WHO = {
    "draft": "#0066aa",
    "target": "#b54708",
    "judge": "#7a4ea3",
    "kept": "#00735a",
    "gone": "#6d7480",
    "cache": "#4a5568",
}
"""The colour of a role; `judge` is the verifier, `gone` what was rejected or cancelled."""
WASH = {
    "draft": "#e6f1fa",
    "target": "#fdf0e6",
    "judge": "#f3ecfa",
    "kept": "#e2f4ee",
    "gone": "#eeeef0",
    "cache": "#eceae4",
}
"""The same, for the ground that words stand on."""
MARKS = {"accepted": "✓", "correction": "✗", "bonus": "+", "target": "•"}
"""How a step came into the answer, as a sign."""
COLOUR_OF = {"accepted": "kept", "correction": "target", "bonus": "target", "target": "target"}


def require_matplotlib() -> None:
    """Raises `SettingError` where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise SettingError(
            'a figure needs matplotlib, which is not installed: pip install "lookahead-reasoning[plot]".'
        )


@contextmanager
def figure(width: float, height: float, *, size: float = 10, salt: str = "lr") -> Iterator[Any]:
    """An empty matplotlib figure of that many inches, in our style while the block lasts. `size`:
    of letters, in points; `salt`: what the names inside of an SVG are made from. Raises
    `SettingError` where there is no matplotlib."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {
        "font.size": size,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.grid": True,
        "grid.color": GRID,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": salt,
        "svg.fonttype": "path",
    }
    with rc_context(style):
        yield Figure(figsize=(width, height), layout="constrained")


def write(made: Any, path: Path) -> list[Path]:
    """Write a figure to `path` with its ending replaced by .png and by .svg; returns both. Call it
    inside of `figure`.
    """
    written = [path.with_suffix(".png"), path.with_suffix(".svg")]
    made.savefig(written[0], dpi=150, metadata={"Software": None})
    made.savefig(written[1], metadata={"Date": None})
    return written


def inches(made: Any, width: float, height: float) -> Any:
    """The whole of a figure as one field whose unit is the inch, (0, 0) at its upper left corner,
    without axes.
    """
    made.set_layout_engine("none")
    axes = made.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return axes
