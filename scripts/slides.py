"""The slides of the two lectures (notebooks/README.md), made from cells of the
notebooks.

    python scripts/slides.py slides          writes slides/first.html and slides/second.html

Jupyter's slide type says how a cell is used (in JupyterLab: Property Inspector, Slide
Type). "slide" begins a new slide, as does every heading. A cell without a type
continues the slide before it. "notes" are for the lecturer (key N). "skip" leaves the
cell out. The pages need no network: they contain the pictures, formulas as MathML, and
a short script that turns the slides.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

import nbformat
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from lr.watch.figures.style import GRID, INK, PAPER, SOFT, WASHES

FOLDER = Path(__file__).parents[1] / "notebooks"
LECTURES = {
    "first": ("Tokens and steps", ("01", "00")),
    "second": ("Time, meaning, chance", ("04", "02", "05", "09")),
}
"""By name of the page: the lecture's title and its notebooks, in order."""
QUESTION = "Why is it not slower to be wrong?"
KEYS = "→ ← space: turn · N: notes · F: full screen · print the page for a PDF"
MATH = re.compile(r"(`+).+?\1|\$\$(.+?)\$\$|\$([^$\n]+(?:\n[^$\n]+)?)\$", re.DOTALL)
HEADING = re.compile(r"^(?=#+ )", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
STYLE = Template("""
* { box-sizing: border-box }
body { margin: 0; font-family: system-ui, sans-serif; line-height: 1.4; color: $ink }
section { display: none; width: 100vw; height: 100vh; padding: 4vh 6vw; overflow: auto }
section { font-size: 2.7vh; background: $paper }
section.on { display: block }
section.title { padding-top: 30vh; text-align: center }
h1, h2, h3 { line-height: 1.15; margin: 0 0 .5em }
pre { background: $wash; padding: .5em .8em; margin: .4em 0; white-space: pre-wrap }
pre { font-size: .82em }
pre.out { background: none; border-left: .25em solid $soft; padding: .1em .8em }
img { max-width: 100%; max-height: 58vh }
table { border-collapse: collapse }
td, th { border-bottom: 1px solid $grid; padding: .2em .7em; text-align: left }
blockquote { border: 2px solid $ink; border-radius: 6px; margin: .5em 0; padding: .2em 1em }
math[display=block] { margin: .5em 0 }
.notes { display: none }
.noted .notes { display: block }
footer { position: fixed; right: 1vw; bottom: 1vh; font-size: 1.8vh; color: $soft }
@media print {
  section { display: block; page-break-after: always; height: auto }
  footer { display: none }
}
""").substitute(ink=INK, soft=SOFT, grid=GRID, paper=PAPER, wash=WASHES["rejected"])
TURN = """
const slides = [...document.querySelectorAll('section')], foot = document.querySelector('footer');
function show(at) {
  at = Math.max(0, Math.min(slides.length - 1, at));
  slides.forEach((one, i) => one.classList.toggle('on', i === at));
  const one = slides[at];
  one.style.fontSize = '';
  for (let size = 2.7; size > 1.2 && one.scrollHeight > one.clientHeight; size -= 0.1)
    one.style.fontSize = size + 'vh';
  foot.textContent = (at + 1) + ' / ' + slides.length;
  history.replaceState(null, '', '#' + (at + 1));
}
const now = () => slides.findIndex(one => one.classList.contains('on'));
const begin = () => show((parseInt(location.hash.slice(1)) || 1) - 1);
addEventListener('hashchange', begin);
addEventListener('resize', () => show(now()));
addEventListener('keydown', event => {
  if (['ArrowRight', 'PageDown', ' '].includes(event.key)) show(now() + 1);
  else if (['ArrowLeft', 'PageUp'].includes(event.key)) show(now() - 1);
  else if (event.key === 'n') document.body.classList.toggle('noted');
  else if (event.key === 'f') document.documentElement.requestFullscreen();
  else return;
  event.preventDefault();
});
begin();
"""


def prose(text: str) -> str:
    """Markdown as HTML: formulas as MathML, links to files of the repository as plain
    words."""
    formulas: list[str] = []

    def kept(found: re.Match[str]) -> str:
        code, display, inline = found.groups()
        if code:
            return found.group()
        latex = re.sub(r"\n>? ?", " ", display or inline).strip()
        formulas.append(convert(latex, display="block" if display else "inline"))
        return f"@{len(formulas) - 1}@"

    made = MarkdownIt().enable("table").render(LINK.sub(r"\1", MATH.sub(kept, text)))
    return re.sub(r"@(\d+)@", lambda found: formulas[int(found[1])], made)


def shown(output: Any) -> str:
    """The HTML of a cell's output, printed or drawn."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"].strip()}">'
    text = (
        output.get("text")
        or data.get("text/html")
        or html.escape(data.get("text/plain", ""))
    )
    if "text" in output:
        text = html.escape(text)
    return f'<pre class="out">{text.rstrip()}</pre>'


def cell_html(cell: Any) -> str:
    """A cell as HTML, with its outputs."""
    if cell.cell_type == "markdown":
        return prose(cell.source)
    code = highlight(
        cell.source, PythonLexer(), HtmlFormatter(noclasses=True, nobackground=True)
    )
    return code + "".join(shown(output) for output in cell.outputs)


def slides_of(number: str) -> list[str]:
    """The slides of the notebook whose name begins with `number`."""
    [path] = FOLDER.glob(f"{number}_*.ipynb")
    slides: list[str] = []
    before = "skip"
    for cell in nbformat.read(path, as_version=4).cells:
        kind = cell.metadata.get("slideshow", {}).get("slide_type", "-")
        parts = HEADING.split(cell.source) if cell.cell_type == "markdown" else [""]
        if kind == "notes":
            slides[-1] += f'<div class="notes">{prose(cell.source)}</div>'
        elif kind != "skip" and len(parts) > 1:  # each heading begins a slide
            if kind == "slide" and parts[0]:
                slides.append(prose(parts[0]))
            elif before != "skip":
                slides[-1] += prose(parts[0])
            slides += [prose(part) for part in parts[1:]]
        elif kind != "skip":
            slides += [""] if kind == "slide" or not slides else []
            slides[-1] += cell_html(cell)
        before = kind
    return slides


def page(name: str) -> str:
    """A lecture as one page."""
    title, numbers = LECTURES[name]
    first = f'<section class="title"><h1>{title}</h1><p>{QUESTION}</p><p>{KEYS}</p></section>'
    slides = [
        f"<section>{slide}</section>" for one in numbers for slide in slides_of(one)
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    body = "\n".join([first, *slides])
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
        path.write_text(page(name), encoding="utf-8")
        print(f"{path}: {path.read_text('utf-8').count('<section')} slides")


if __name__ == "__main__":
    main()
