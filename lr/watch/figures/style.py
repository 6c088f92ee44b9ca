"""How every picture looks: one palette and one style, as PNG and SVG. Same data, same
files.

    with figure(9.6, 4.2) as drawing:
        drawing.subplots().plot(...)
        write(drawing, Path("docs/figures/some.png"))

Each role has one colour: in the README's picture, the notebooks, the player (a test
compares `player/style.css`), the terminal and all figures. Colour-blind readers can
tell them apart, and no picture relies on colour alone. Only drawing imports matplotlib
(the extra `plot`). Read next: `tree.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lr.errors import SettingError

INK, SOFT, GRID, PAPER = "#222222", "#5b6472", "#dddddd", "#ffffff"
ROLE_COLOURS = {
    "draft": ("#0066aa", "#e6f1fa"),
    "target": ("#b54708", "#fdf0e6"),
    "verifier": ("#7a4ea3", "#f3ecfa"),
    "accepted": ("#00735a", "#e2f4ee"),
    "rejected": ("#6d7480", "#eeeef0"),
    "bonus": ("#7a6400", "#f7f2d8"),
    "cache": ("#4a5568", "#eceae4"),
}
"""The colour of a role, and its tint for the background of words. Cancelled work has
the colour of `rejected`, and is hatched."""
COLOURS = {
    role: colour for role, (colour, _) in ROLE_COLOURS.items()
}  # of lines and letters
WASHES = {role: wash for role, (_, wash) in ROLE_COLOURS.items()}  # of areas
SERIES = ("#222222", "#c2247f", "#4f8a10", "#1498b5", "#7b4b2a", "#8a94a0")
"""Colours of curves without a role, in order; none of them is the colour of a role."""


def require_matplotlib() -> None:
    """Raise `SettingError` if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise SettingError(
            "a figure needs matplotlib, which is not installed: "
            'pip install "lookahead-reasoning[plot]".'
        )


@contextmanager
def figure(width: float, height: float, *, size: float = 10) -> Iterator[Any]:
    """An empty matplotlib figure of `width` by `height` inches, with letters of `size`
    points. Our style applies inside the block.

    A notebook shows the figure if it is the value of a cell. Raises `SettingError`
    without matplotlib."""
    require_matplotlib()
    from matplotlib import get_backend, pyplot, rc_context
    from matplotlib.figure import Figure

    if "inline" in get_backend():  # a first figure loads the notebook's display hook
        pyplot.close(pyplot.figure())
    style = {
        "font.size": size, "legend.frameon": False,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
        "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID,
    }  # fmt: skip
    with rc_context(style):
        yield Figure(figsize=(width, height), layout="constrained")


def write(drawing: Any, path: Path) -> list[Path]:
    """Write a figure as .png and .svg, the same files for the same figure; returns both
    paths."""
    from matplotlib import rc_context

    written = [path.with_suffix(".png"), path.with_suffix(".svg")]
    # no version: equal figures, equal files
    drawing.savefig(written[0], dpi=150, metadata={"Software": None})
    with rc_context({"svg.hashsalt": "lr", "svg.fonttype": "path"}):
        drawing.savefig(written[1], metadata={"Date": None})
    return written


def inches(drawing: Any, width: float, height: float) -> Any:
    """One field of the whole figure, without axes: in inches, (0, 0) at the upper left
    corner."""
    drawing.set_layout_engine("none")
    axes = drawing.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))  # y grows downwards
    axes.axis("off")
    return axes


def put(
    axes: Any, x: float, y: float, text: str, size: float, colour: str, **more: Any
) -> None:
    """Write a text with its middle at height `y`. `more`: arguments of matplotlib's
    `text`."""
    axes.text(x, y, text, **{"fontsize": size, "color": colour, "va": "center"} | more)
