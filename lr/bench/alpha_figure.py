"""The figure of `lr bench alpha`: left the mean acceptance length over k with both predictions, right the acceptance rate by place.

Drawn from the document that the command writes as JSON, so a figure can be drawn again without measuring again. The only module that
wants matplotlib (the extra `plot`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, CONSTANT, PLACE, GRID = "#222222", "#c44e00", "#0066aa", "#dddddd"


def require_matplotlib() -> None:
    """Raises `SettingError` where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise SettingError(
            'a figure needs matplotlib, which is not installed: pip install "lookahead-reasoning[plot]".'
        )


def draw(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw to `path` with its ending replaced by .png and by .svg; returns both. The same document gives the same pictures."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.grid": True,
        "grid.color": GRID,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "lr bench alpha",
        "svg.fonttype": "path",
    }
    with rc_context(style):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _lengths(left, document["points"])
        _rates(right, document["points"][-1])
        settings = document["settings"]
        figure.suptitle(
            f"Draft model, rule reject, temperature {settings['temperature']:g}, {settings['problems']} held-out problems",
            fontsize=11,
        )
        written = [path.with_suffix(".png"), path.with_suffix(".svg")]
        figure.savefig(written[0], dpi=150, metadata={"Software": None})
        figure.savefig(written[1], metadata={"Date": None})
    return written


def _lengths(axes: Axes, points: list[dict[str, Any]]) -> None:
    """Tokens per round over k."""
    ks = [p["k"] for p in points]
    axes.plot(
        ks, [p["constant"] for p in points], color=CONSTANT, label="predicted: one rate,  (1 − α$^{k+1}$) / (1 − α)"
    )
    axes.plot(ks, [p["by_place"] for p in points], color=PLACE, ls="--", label="predicted: one rate per place")
    axes.errorbar(
        ks,
        [p["measured"] for p in points],
        yerr=[2 * p["error"] for p in points],
        color=INK,
        fmt="o",
        ms=4,
        capsize=3,
        label="measured, ± 2 standard errors",
    )
    axes.set(xlabel="k, drafts per round", ylabel="tokens per round (mean acceptance length)", xticks=ks)
    axes.set_ylim(bottom=1)
    axes.legend(loc="lower right", fontsize=9)


def _rates(axes: Axes, last: dict[str, Any]) -> None:
    """The conditional acceptance rate of each place, for the longest k."""
    places = range(1, last["k"] + 1)
    axes.axhline(last["alpha"], color=CONSTANT, label=f"α = accepted / tried = {last['alpha']:.3f}")
    axes.errorbar(
        places,
        last["rates"],
        yerr=[2 * error for error in last["rate_errors"]],
        color=PLACE,
        fmt="s",
        ms=4,
        capsize=3,
        label="by place, ± 2 standard errors",
    )
    axes.set(xlabel=f"place of the draft in a round of k = {last['k']}", xticks=list(places))
    axes.set_ylabel("accepted, given that it was tried")
    axes.set_ylim(0, 1)
    axes.legend(loc="lower right", fontsize=9)
