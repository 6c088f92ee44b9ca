"""Draws docs/figures/lookahead.svg, the picture on top of the README, one synchronous
cycle of Lookahead Reasoning with three drafts; and network.svg, for notebook 03.

    python scripts/draw_overview.py

Algorithm 1 of the paper (arXiv 2506.19830, section 3.2) as a time line. Row j of the
target's batch continues the drafts written so far: its prefix stands below those
drafts, in the same columns. The cycle itself, in code: `lr/lookahead.py`. The picture
brings its own background, so that it reads the same on a light and on a dark page.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from lr.model.config import read_config
from lr.model.files import resolve
from lr.watch.figures.style import COLOURS, INK, SOFT, WASHES

FIGURES = Path(__file__).parents[1] / "docs" / "figures"

WIDTH = 880
HEIGHT = 392
LEFT = 132
DRAFT_WIDTH = 74
STEP_HEIGHT = 30
GAP = 8
BARRIER = LEFT + 3 * (DRAFT_WIDTH + GAP) + 10
TARGET_WIDTH = 228
VERDICT_X = BARRIER + 228 + 34
DRAFT_Y = 64
TARGET_Y = 128
ROW = 42
OUTPUT_Y = 322

PAGE = "#fcfbf8"
LINE = "#d5d2ca"
ARROW = f'fill="none" stroke="{SOFT}"'
SUBSCRIPTS = "₁₂₃₄"  # as in lr/lookahead.py
VERDICTS = (True, True, False)
"""What the verifier says about the pairs of this example: the third draft is not what
the target means.
"""


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 14,
    colour: str = INK,
    anchor: str = "start",
) -> str:
    """Words with their baseline at y."""
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def box(
    x: float,
    y: float,
    width: float,
    label: str,
    role: str,
    *,
    outline: bool = False,
    dashed: bool = False,
) -> str:
    """A step in the colour of a role: a rounded box with its name in the middle.
    `outline`: a step of the prefix, which is not written here.
    """
    fill, stroke = (PAGE, SOFT) if outline else (WASHES[role], COLOURS[role])
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    frame = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{STEP_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{stroke}"{dashes}/>'
    )
    return frame + text(
        x + width / 2, y + 20, label, size=15, colour=stroke, anchor="middle"
    )


def verdict(x: float, y: float, aligned: bool) -> str:
    """A tick or a cross in a disc around (x, y), drawn as lines so that no font has to
    know them.
    """
    role = "accepted" if aligned else "rejected"
    fill = WASHES[role]
    stroke = COLOURS[role]
    path = f"M{x - 5} {y}l4 4l7 -8" if aligned else f"M{x - 4} {y - 4}l8 8m0 -8l-8 8"
    disc = f'<circle cx="{x}" cy="{y}" r="11" fill="{fill}" stroke="{stroke}"/>'
    pen = f'fill="none" stroke="{stroke}" stroke-width="2.2" stroke-linecap="round"'
    return disc + f'<path d="{path}" {pen}/>'


def column(j: int) -> int:
    """The left edge of draft step j."""
    return LEFT + j * (DRAFT_WIDTH + GAP)


def draft_lane() -> list[str]:
    """The drafts, each from the ones before it."""
    lane = [text(24, DRAFT_Y + 20, "draft", colour=COLOURS["draft"])]
    lane += [
        box(column(j), DRAFT_Y, DRAFT_WIDTH, f"ŝ{SUBSCRIPTS[j]}", "draft")
        for j in range(3)
    ]
    return [
        *lane,
        text(BARRIER + 8, DRAFT_Y + 20, "one step after another", size=13, colour=SOFT),
    ]


def target_rows() -> list[str]:
    """Row j: the prefix ŝ0 .. ŝj-1 in outline, then the target's own step, then the
    verdict on the pair.
    """
    middle = TARGET_Y + 1.5 * ROW + 20
    rows = [
        text(24, middle - 9, "target", colour=COLOURS["target"]),
        text(24, middle + 9, "one batch", size=13, colour=SOFT),
    ]
    rows.append(
        text(VERDICT_X - 11, DRAFT_Y + 48, "verifier", colour=COLOURS["verifier"])
    )
    for j in range(4):
        y = TARGET_Y + j * ROW
        rows += [
            box(column(i), y, DRAFT_WIDTH, f"ŝ{SUBSCRIPTS[i]}", "draft", outline=True)
            for i in range(j)
        ]
        bonus = j == len(VERDICTS)
        role = "bonus" if bonus else "target"
        rows.append(
            box(BARRIER, y, TARGET_WIDTH, f"s{SUBSCRIPTS[j]}", role, dashed=bonus)
        )
        if bonus:
            rows.append(
                text(
                    VERDICT_X - 14,
                    y + 20,
                    "bonus: kept if all are aligned",
                    size=13,
                    colour=SOFT,
                )
            )
        else:
            says = "means the same as" if VERDICTS[j] else "does not mean"
            rows.append(verdict(VERDICT_X, y + 15, aligned=VERDICTS[j]))
            rows.append(
                text(
                    VERDICT_X + 20,
                    y + 20,
                    f"ŝ{SUBSCRIPTS[j]} {says} s{SUBSCRIPTS[j]}",
                    size=13,
                )
            )
    top = DRAFT_Y - 8
    bottom = TARGET_Y + 3 * ROW + STEP_HEIGHT + 8
    return [
        f'<path d="M{BARRIER - 9} {top}V{bottom}" stroke="{SOFT}" stroke-dasharray="2 4"/>',
        *rows,
    ]


def output_lane() -> list[str]:
    """Drafts up to the first that is not aligned, then the target's step in its
    place."""
    num_accepted = VERDICTS.index(False)
    lane = [
        f'<path d="M24 {OUTPUT_Y - 16}H{WIDTH - 24}" stroke="{LINE}"/>',
        text(24, OUTPUT_Y + 20, "output"),
    ]
    for j in range(num_accepted + 1):
        role, name, says = (
            ("accepted", "ŝ", "accepted")
            if j < num_accepted
            else ("target", "s", "correction")
        )
        lane.append(
            box(column(j), OUTPUT_Y, DRAFT_WIDTH, f"{name}{SUBSCRIPTS[j]}", role)
        )
        middle = column(j) + DRAFT_WIDTH / 2
        colour = COLOURS[role]
        lane.append(
            text(middle, OUTPUT_Y + 50, says, size=13, colour=colour, anchor="middle")
        )
    words = "… and the next cycle begins after these three"
    return [*lane, text(BARRIER + 8, OUTPUT_Y + 20, words, size=13, colour=SOFT)]


def network() -> str:
    """What goes into the network of the tiny target and what comes out, for notebook 03."""
    config = read_config(resolve("tiny-target"))
    width, words = config.hidden_size, config.vocab_size
    height = 214
    middle = 96
    parts = [
        ("n token ids", "[n]", "cache", 40, 110),
        ("embedding", f"[n, {width}]", "target", 186, 110),
        (
            "attention, then MLP",
            f"{config.num_layers} layers, [n, {width}]",
            "target",
            332,
            210,
        ),
        ("norm, head", f"[n, {words}]", "target", 578, 120),
        ("logits", "one row per token", "accepted", 734, 110),
    ]
    lines = []
    for i, (label, shape, role, x, wide) in enumerate(parts):
        lines.append(box(x, middle, wide, label, role))
        centre = x + wide / 2
        lines.append(
            text(centre, middle + 50, shape, size=13, colour=SOFT, anchor="middle")
        )
        if i:
            lines.append(
                f'<path d="M{x - 32} {middle + 15}h24m-6 -5l6 5l-6 5" {ARROW}/>'
            )
    cache = "cache: keys and values of all tokens read before"
    lines.append(box(222, middle + 72, 430, cache, "cache", outline=True))
    lines.append(f'<path d="M437 {middle + 72}v-14m-5 6l5 -6l5 6" {ARROW}/>')
    return frame(
        "The network: token ids in, logits out", "Text in, a score for every next token out",
        height, [*lines, text(40, middle - 14, "a text, or its next piece", size=13, colour=SOFT)],
    )  # fmt: skip


def cycle() -> str:
    """One synchronous cycle."""
    title = (
        "Lookahead Reasoning: a small model drafts whole steps, the large one writes its own "
        "beside them, a verifier compares"
    )
    time = text(WIDTH - 24, 34, "time →", size=13, colour=SOFT, anchor="end")
    parts = [time, *draft_lane(), *target_rows(), *output_lane()]
    return frame(title, "One cycle, three steps ahead", HEIGHT, parts)


def frame(title: str, heading: str, height: int, parts: list[str]) -> str:
    """The whole SVG file."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        f'     width="{WIDTH}" height="{height}"',
        '     font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" '
        f'fill="{PAGE}" stroke="{LINE}"/>',
        text(24, 34, heading, size=17),
    ]
    return "\n".join([*lines, *parts, "</svg>\n"])


if __name__ == "__main__":
    for name, draw in {"lookahead": cycle, "network": network}.items():
        path = FIGURES / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"wrote {path.relative_to(FIGURES.parents[1])}")
