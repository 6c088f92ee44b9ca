"""The slides of the two lectures (notebooks/README.md): a figure at full width, or a
formula, and one sentence.

    python scripts/slides.py slides          writes slides/first.html and slides/second.html

Figures are those of docs/figures, or a picture that a notebook keeps. The pages need no
network: they contain the pictures, formulas as MathML, and a short script that turns
the slides.
"""

from __future__ import annotations

import base64
import html
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

import nbformat
from latex2mathml.converter import convert

from lr.watch.figures.style import INK, PAPER, SOFT

ROOT = Path(__file__).parents[1]
QUESTION = "Why is it not slower to be wrong?"
KEYS = "→ ← space: turn · F: full screen · print the page for a PDF"


@dataclass(frozen=True)
class Slide:
    """A sentence, and a figure: a file of docs/figures, ("04", 3) for the third picture
    of notebook 04, or a formula."""

    sentence: str
    figure: str | tuple[str, int] = ""
    formula: str = ""


LECTURES = {
    "first": ("Tokens and steps", (
        Slide("A small model writes ahead; a large one checks.", "player.png"),
        Slide("The draft says heads in four of five cases, the target in one of two.", ("01", 1)),
        Slide("Keep a drafted token with probability min(1, p/q); else draw from the residual.",
              formula=r"q\,\min\left(1, \frac{p}{q}\right) + P(\text{rejected})\,"
                      r"\frac{(p - q)_+}{\sum (p - q)_+} = p"),
        Slide("Drawing again from p looks right, and is biased.", ("01", 2)),
        Slide("The same with steps: the draft writes three, the target four in one batch.",
              "lookahead.svg"),
        Slide("A cycle emits what was accepted and one step of the target.",
              formula=r"\frac{1 + \alpha + \dots + \alpha^\gamma}{1 + c\,\gamma}"),
        Slide("At a barrier one model waits for the other.", ("04", 9)),
        Slide("Without it, all three work at the same time.", ("04", 6)),
        Slide("A real answer: the target's rows begin as draft steps arrive.",
              "answer-timeline.svg"),
        Slide("A rejection: the target's step, written for the comparison, replaces the draft's.",
              "answer-tree.svg"),
        Slide("A draft that is always wrong costs no pass of the target.",
              formula=r"75 \text{ passes with it, } 75 \text{ without (notebook 00)}"),
    )),
    "second": ("Time, meaning, chance", (
        Slide("You are the clock. Both models have begun.", ("04", 1)),
        Slide("The draft runs ahead; the target writes at every node.", ("04", 2)),
        Slide("One verdict, and everything after a wrong step is dropped.", ("04", 4)),
        Slide("Two branches share their blocks.", ("02", 3)),
        Slide("Who writes into a shared block copies that one block.", ("02", 5)),
        Slide("A cycle has a best depth. A window has none.", ("05", 1)),
        Slide("How fast can it get? One limit is the draft's mistakes, the other its speed.",
              formula=r"S_1 = \frac{1}{(1+v)(1-\alpha) + c\,\alpha} \le "
                      r"\min\left(\frac{1}{1-\alpha}, \frac{1}{c}\right)"),
        Slide("The order of the schedules never changes.", "theory_schedules.svg"),
        Slide("Formula and simulation agree.", ("05", 2)),
        Slide("The stopwatch does not: where the speed goes on one thread.", ("05", 5)),
        Slide("What does it sample from? A mixture, wherever meanings agree.", ("09", 1)),
        Slide("The words are the draft's as often as the target would have meant the same.",
              formula=r"P(y) = q_y\,p(C) + p_y\,(1 - q(C))"),
        Slide("A verifier that accepts one false step in ten spoils a third of thirty-step answers.",
              ("06", 3)),
    )),
}  # fmt: skip
"""By name of the page: the lecture's title and its slides."""

STYLE = Template("""
* { box-sizing: border-box }
body { margin: 0; font-family: system-ui, sans-serif; color: $ink; background: $paper }
section { display: none; width: 100vw; height: 100vh; padding: 4vh 4vw; overflow: hidden }
section.on { display: flex; flex-direction: column; align-items: center; gap: 4vh }
section.title { justify-content: center; text-align: center }
h1 { font-size: 7vh; margin: 0 } h2 { font-size: 4.4vh; margin: 0; text-align: center }
p { font-size: 3vh; margin: 0 }
.figure { flex: 1; min-height: 0; width: 100%; display: flex; justify-content: center;
  align-items: center }
img { width: 100%; height: 100%; object-fit: contain }
math { font-size: 8vh }
footer { position: fixed; right: 1vw; bottom: 1vh; font-size: 1.8vh; color: $soft }
@media print {
  section, section.on { display: flex; page-break-after: always; height: 100vh }
  footer { display: none }
}
""").substitute(ink=INK, soft=SOFT, paper=PAPER)
TURN = """
const slides = [...document.querySelectorAll('section')], foot = document.querySelector('footer');
const now = () => slides.findIndex(slide => slide.classList.contains('on'));
function show(at) {
  at = Math.max(0, Math.min(slides.length - 1, at));
  slides.forEach((slide, i) => slide.classList.toggle('on', i === at));
  foot.textContent = (at + 1) + ' / ' + slides.length;
  history.replaceState(null, '', '#' + (at + 1));
}
const begin = () => show((parseInt(location.hash.slice(1)) || 1) - 1);
addEventListener('hashchange', begin);
addEventListener('keydown', event => {
  if (['ArrowRight', 'PageDown', ' '].includes(event.key)) show(now() + 1);
  else if (['ArrowLeft', 'PageUp'].includes(event.key)) show(now() - 1);
  else if (event.key === 'f') document.documentElement.requestFullscreen();
  else return;
  event.preventDefault();
});
begin();
"""


def picture(figure: str | tuple[str, int]) -> str:
    """The figure as a data address."""
    if isinstance(figure, str):
        path = ROOT / "docs" / "figures" / figure
        kind = "svg+xml" if path.suffix == ".svg" else "png"
        data = base64.b64encode(path.read_bytes()).decode()
        return f"data:image/{kind};base64,{data}"
    number, index = figure
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    pictures = [
        output.data["image/png"].strip()
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    return f"data:image/png;base64,{pictures[index - 1]}"


def section(slide: Slide) -> str:
    """A slide as HTML."""
    sentence = html.escape(slide.sentence)
    shown = (
        convert(slide.formula, display="block")
        if slide.formula
        else f'<img alt="{sentence}" src="{picture(slide.figure)}">'
    )
    return f'<section><h2>{sentence}</h2><div class="figure">{shown}</div></section>'


def page(name: str) -> str:
    """A lecture as one page."""
    title, slides = LECTURES[name]
    first = f'<section class="title"><h1>{title}</h1><h2>{QUESTION}</h2><p>{KEYS}</p></section>'
    last = f'<section class="title"><h1>{QUESTION}</h1></section>'
    body = "\n".join([first, *map(section, slides), last])
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head>'
        f"<body>\n{body}\n<footer></footer><script>{TURN}</script></body></html>\n"
    )


def main() -> None:
    """Write the pages into the folder given on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in LECTURES:
        path = folder / f"{name}.html"
        text = page(name)
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {text.count('<section')} slides")


if __name__ == "__main__":
    main()
