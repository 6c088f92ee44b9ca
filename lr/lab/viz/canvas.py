"""What all drawings share: colours, and a figure that shows itself in a notebook.

matplotlib is needed for drawings only; it comes with the extra `plot` and is imported when
something is drawn. The colours of the roles come from `style.py`. Read next: `tree.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lr.errors import LRError
from lr.lab.viz.style import WHO
from lr.spec.protocol import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {Kind.DRAFT: WHO["draft"], Kind.TARGET: WHO["target"], Kind.JUDGE: WHO["judge"]}
KEPT, GONE, IDLE, INK = WHO["kept"], "#c53030", "#a0aec0", "#4a5568"


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure of that many inches with one field to draw in. Raises `LRError` where
    matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise LRError(
            "drawing needs matplotlib, which is not installed. Try: pip install matplotlib"
        ) from None
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    plt.close(figure)  # or a notebook would show it twice: now, and as the value of the cell
    return figure, axes
