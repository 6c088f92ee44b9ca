"""The drawings of the notebooks: what is drawn, read back from the figures; sliders with and
without `ipywidgets`.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import matplotlib as mpl
import pytest
import torch

from lr.kvcache.cache import PagedKVCache
from lr.lab.viz import plots
from lr.lab.viz.blocks import FREE, OWN, SHARED, draw_blocks
from lr.lab.viz.plots import draw_bars, draw_curves, draw_field, draw_lines_of, with_sliders

mpl.use("Agg")


def words_of(figure) -> list[str]:  # type: ignore[no-untyped-def]
    return [text.get_text().strip() for text in figure.axes[0].texts]


def test_blocks_show_holders_and_valid_tokens_only() -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1}
    cache = PagedKVCache(**sizes, num_blocks=3, block_size=2, dtype=torch.float32, device="cpu")
    table = cache.new()
    with cache.append([table], [3]):
        pass
    twin = cache.fork(table)
    with cache.append([twin], [1]):
        pass
    cache.truncate(twin, 3)
    figure = draw_blocks(cache, {"A": (table, "xyz!"), "B": (twin, "xyzw")})
    # ids and holders of the blocks 0 (shared), 1 (A's) and 2 (B's copy), each with its two places
    assert words_of(figure)[:12] == ["0", "A B", "x", "y", "1", "A", "z", "", "2", "B", "z", ""]
    colours = [mpl.colors.to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches]
    assert colours == [SHARED, SHARED, OWN, OWN, OWN, OWN]
    cache.release(twin)
    again = draw_blocks(cache, {"A": (table, "xyz!")})
    assert mpl.colors.to_hex(again.axes[0].patches[-1].get_facecolor()) == FREE


def test_bars_have_the_heights_of_their_series() -> None:
    figure = draw_bars({"p": (0.5, 0.25), "q": (1.0, 0.0)}, places=("a", "b"))
    assert [bar.get_height() for bar in figure.axes[0].patches] == [0.5, 0.25, 1.0, 0.0]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["a", "b"]


def test_curves_points_and_labels_of_neighbours_in_one_list() -> None:
    points = {"seen": [(0.0, 0.0), (1.0, 1.0), (1.0, 0.99)]}
    names = ["low", "high", "nearly"]
    figure = draw_curves(
        {"line": [(0, 0), (1, 1)]}, x="x", y="y", points=points, errors=[0.1] * 3, labels=names
    )
    axes = figure.axes[0]
    assert axes.lines[0].get_ydata().tolist() == [0, 1]
    assert words_of(figure) == ["low", "high\nnearly"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["line", "seen"]


def test_a_field_marks_what_holds() -> None:
    figure = draw_field([[True, False], [True, True]], x="key", y="query")
    marked = [line.get_color() == plots.PALETTE[0] for line in figure.axes[0].lines]
    assert marked == [True, False, True, True]


def test_lines_of_a_function_with_and_without_sliders(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(slope: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(label="line", x=[0, 1], y=[0, slope])]

    def draw(slope: float):  # type: ignore[no-untyped-def]
        return draw_lines_of(make, x="x", y="y", slope=slope)

    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert with_sliders(draw, slope=(0.0, 2.0, 1.5)).axes[0].lines[0].get_ydata().tolist() == [
        0,
        1.5,
    ]
    widgets = ModuleType("ipywidgets")
    widgets.FloatSlider = lambda start, **settings: (start, settings["min"], settings["max"])  # type: ignore[attr-defined]
    widgets.interactive = lambda draw, **sliders: sliders  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    monkeypatch.setattr(plots, "find_spec", lambda name: object())
    assert with_sliders(draw, slope=(0.0, 2.0, 1.5)) == {"slope": (1.5, 0.0, 2.0)}
