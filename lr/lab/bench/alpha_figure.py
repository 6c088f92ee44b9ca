"""The figure of `lr bench alpha`: left the mean acceptance length over k with both predictions,
right the acceptance rate by place.

Drawn from the document that the command writes as JSON, so a figure can be drawn again without
measuring again. Wants matplotlib (the extra `plot`). Read next: `lab/viz/style.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lr.lab.viz.style import INK, SERIES, figure, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACE, CONSTANT = SERIES[:2]


def draw(document: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw to `path` with its ending replaced by .png and by .svg; returns both. The same document
    gives the same pictures.
    """
    with figure(9.6, 4.2, salt="lr bench alpha") as made:
        left, right = made.subplots(1, 2)
        _lengths(left, document["points"])
        _rates(right, document["points"][-1])
        settings = document["settings"]
        made.suptitle(
            f"Draft model, rule reject, temperature {settings['temperature']:g}, {settings['problems']} held-out problems",
            fontsize=11,
        )
        return write(made, path)


def _lengths(axes: Axes, points: list[dict[str, Any]]) -> None:
    """Tokens per round over k."""
    ks = [p["k"] for p in points]
    axes.plot(
        ks,
        [p["constant"] for p in points],
        color=CONSTANT,
        label="predicted: one rate,  (1 − α$^{k+1}$) / (1 − α)",
    )
    axes.plot(
        ks,
        [p["by_place"] for p in points],
        color=PLACE,
        ls="--",
        label="predicted: one rate per place",
    )
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
    axes.set(
        xlabel="k, drafts per round", ylabel="tokens per round (mean acceptance length)", xticks=ks
    )
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
