"""The figures say what the trace, the run or the cache says, twice the same."""

import matplotlib as mpl
import pytest
from kvcache_kit import small_cache
from watch_kit import scripted

from lr.spec.protocol import Limits, SchedulerConfig
from lr.watch.figures.cache import draw_blocks
from lr.watch.figures.clock import CANCELLED, OPEN, timeline_of
from lr.watch.figures.plots import draw_bars
from lr.watch.figures.style import COLOURS, PAPER, SERIES, WASHES
from lr.watch.figures.tree import draw_tree, tree_figure
from lr.watch.scripted import ScriptedRun, TextScript, newest, oldest, scripted_trace
from lr.watch.trace.state import state_at

SCRIPT = TextScript(["a.", "b.", "c$"], ["A.|X.", "Y.|B.", "C$|Z$"])


def a_run(width=1, order=oldest):
    return ScriptedRun(SchedulerConfig(Limits(50), depth=2, width=width), SCRIPT, order)


def words(drawing):
    """All that is written in a figure."""
    return [text.get_text() for axes in drawing.axes for text in axes.texts]


@pytest.mark.parametrize("order", [oldest, newest])
@pytest.mark.parametrize("width", [1, 2])
def test_every_piece_of_work_has_a_bar(order, width):
    run = a_run(width, order=order)
    for _ in range(3):
        run.step()
    spans = timeline_of(scripted_trace(run)).spans
    unfinished = sorted((s.work, s.node) for s in spans if s.outcome == OPEN)
    assert unfinished == sorted((work.kind.value, str(work.node)) for work in run.work)
    run.run()
    spans = timeline_of(scripted_trace(run)).spans
    assert all(span.end > span.begin for span in spans)
    finished = sorted(span.end for span in spans if span.outcome != CANCELLED)
    assert finished == list(range(1, len(run.turns)))  # a turn completes one piece


@pytest.mark.parametrize("number", [0, 5, 9, 12, 10_000_000])
def test_the_tree_says_what_the_state_says(number):
    state = state_at(scripted(), number)
    texts = words(tree_figure(state))
    below = [node for node in state.live if node.name != state.root]
    if state.done:
        return  # the answer is drawn, no tree
    steps = [node.target for node in state.live] + [node.draft for node in below]
    complete = {step.text.strip() for step in steps if step and step.finish}
    assert complete <= set(texts)
    aligned = [node for node in below if node.verdict and node.verdict.aligned]
    assert texts.count("✓ aligned") == len(aligned)


def test_a_rejected_step_stands_beside_its_correction():
    run = a_run(order=newest)
    run.run()
    drawing = draw_tree(run)
    colours = {text.get_text(): text.get_color() for text in drawing.axes[0].texts}
    assert {"A.", "Y.", "b.", "C$"} <= set(colours)
    assert colours["✗ step 1 rejected"] == COLOURS["rejected"]
    assert colours["✗ step 1 correction"] == COLOURS["target"]
    assert colours["✓ step 0 accepted"] == COLOURS["accepted"]
    assert any(patch.get_hatch() for patch in drawing.axes[0].patches)


def test_blocks_show_owners_and_valid_tokens_only():
    cache = small_cache(num_blocks=4, block_size=2)
    table = cache.new()
    with cache.append([table], [3]):
        pass
    twin = cache.fork(table)
    with cache.append([twin], [1]):
        pass
    cache.truncate(twin, 3)
    drawing = draw_blocks(cache, {"A": (table, "xyz!"), "B": (twin, "xyzw")})
    # Block 0 is shared, 1 is A's, 2 is B's copy of it, 3 is free.
    cells = drawing.axes[0].tables[0].get_celld()
    rows = [[cells[y, x].get_text().get_text() for x in range(4)] for y in range(3)]
    assert rows[0] == ["0 ×2\nxy", "1\nz", "2\nz", "3\n"]
    assert rows[1] == ["0 ×2\nxy", "1\nz", "", ""]
    assert rows[2] == ["0 ×2\nxy", "2\nz", "", ""]
    grounds = [mpl.colors.to_hex(cells[0, x].get_facecolor()) for x in range(4)]
    assert grounds == [COLOURS["cache"], WASHES["cache"], WASHES["cache"], PAPER]


def test_plots_show_their_numbers_in_the_colours_of_their_roles():
    series = {"p": (0.5, 0.25), "q": (1.0, 0.0)}
    axes = draw_bars(series, places=("a", "b"), who=("target", None)).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.25, 1.0, 0.0]
    colours = [mpl.colors.to_hex(bar.get_facecolor()) for bar in axes.patches]
    assert colours == [COLOURS["target"]] * 2 + [SERIES[0]] * 2
