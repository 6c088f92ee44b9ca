"""The slides of the two lectures (notebooks/README.md), with notes for the speaker, and a
page of questions with answers to print.

    python scripts/slides.py slides     writes first.html, second.html and questions.html

A slide is one sentence over a figure, a formula or a pair of real steps. Where a sentence
compares numbers, they are computed here from what the slide shows. Figures are those of
docs/figures, pictures that a notebook keeps, or drawn here. The pages need no network:
they contain pictures, formulas as MathML, and a short script that turns the slides.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import nbformat
from draw_theory import schedules
from latex2mathml.converter import convert

from lr.spec.protocol import Limits, Schedule, SchedulerConfig, Work, WorkKind
from lr.theory.acceptance import wrong_share
from lr.theory.synchronous import lr_sync_cycle_speedup
from lr.watch.figures.clock import timeline_figure
from lr.watch.figures.plots import Bars
from lr.watch.figures.style import INK, PAPER, SOFT, figure
from lr.watch.recorded import JudgedPair, first_answer, kept_and_rejected
from lr.watch.scripted import ScriptedRun, TextScript, scripted_trace
from lr.watch.trace.file import TraceFile

ROOT = Path(__file__).parents[1]
QUESTION = "Why is it not slower to be wrong?"
PAPER_OF = (
    "Fu, Ge, Shao, Deng, Zhang: Scaling Speculative Decoding with Lookahead Reasoning. "
    "NeurIPS 2025, arXiv 2506.19830"
)
KEYS = "→ ← space: turn · N: notes · F: full screen · print the page for a PDF"


@dataclass(frozen=True)
class Slide:
    """A sentence, what the speaker says, and what is shown: files of docs/figures, ("04", 3)
    for the third picture of notebook 04, drawn figures; a formula; or HTML."""

    sentence: str
    notes: str
    figures: tuple[Any, ...] = ()
    formula: str = ""
    shown: str = ""


# ---- numbers, from what is shown

DRAFT, TARGET, VERDICT = 0.25, 1.0, 0.1
"""How long a draft step, a target step and a verdict take in the pictures of the clock."""
SCRIPT = TextScript(
    targets=["a.", "b.", "c.", "d.", "e.", "f$"],
    drafts=["A.", "B.", "X.", "D.", "E.", "F$"],
)


class Clock:
    """An order for a scripted run: what ends first by these durations completes next."""

    def __init__(self, durations: Mapping[WorkKind, float]) -> None:
        self.durations = durations
        self.begun: dict[Work, float] = {}
        self.times = [0.0]  # of every turn

    def __call__(self, work: Sequence[Work]) -> int:
        for piece in work:
            self.begun.setdefault(piece, self.times[-1])
        ends = [self.begun[piece] + self.durations[piece.kind] for piece in work]
        self.times.append(min(ends))
        return ends.index(min(ends))


@functools.cache
def on_the_clock(schedule: Schedule) -> TraceFile:
    """The same script at depth 3 with the same durations, in the unit of a target step."""
    kinds = {WorkKind.DRAFT: DRAFT, WorkKind.TARGET: TARGET, WorkKind.JUDGE: VERDICT}
    clock = Clock(kinds)
    run = ScriptedRun(SchedulerConfig(Limits(50), schedule, depth=3), SCRIPT, clock)
    run.run()
    trace = scripted_trace(run)
    records = [replace(r, time=clock.times[int(r.time)]) for r in trace.records]
    return TraceFile(replace(trace.header, unit="target step"), records)


def length(schedule: Schedule) -> float:
    """How long the scripted answer takes."""
    return on_the_clock(schedule).records[-1].time


def clocks() -> tuple[Any, ...]:
    """The clock with the barrier and without, on one scale."""
    drawings = []
    for schedule in (Schedule.SYNC, Schedule.DEPTH):
        drawing = timeline_figure(on_the_clock(schedule), width=10)
        drawing.set_size_inches(10, 3)
        drawing.axes[0].set_xlim(0, length(Schedule.SYNC))
        drawings.append(drawing)
    return tuple(drawings)


def order_of_schedules() -> str:
    """The curves of theory_schedules.svg from the lowest to the highest, if that is their
    order at every k and in both panels."""
    orders = set()
    for panel in (schedules(0.8, 0.1), schedules(0.5, 0.25)):
        names = [name.split(",")[0] for name, _ in panel]
        curves = [[value for _, value in points] for _, points in panel]
        by_height = sorted(range(len(names)), key=lambda i: sum(curves[i]))
        for lower, upper in itertools.pairwise(by_height):
            pairs = zip(curves[lower], curves[upper], strict=True)
            assert all(a <= b + 1e-9 for a, b in pairs), (names[lower], names[upper])
        orders.add(" ≤ ".join(names[i] for i in by_height))
    [order] = orders
    return order


def best_depth(alpha: float = 0.6, c: float = 0.1) -> int:
    """Of the synchronous cycle in the first figure of notebook 05."""
    return max(range(1, 13), key=lambda k: float(lr_sync_cycle_speedup(alpha, k, c)))


def passes_of_an_always_wrong_draft() -> tuple[int, int]:
    """Of the target, with such a draft and without one, as notebook 00 shows them."""
    [output] = [
        text for text in printed_by("00") if "every draft step is rejected" in text
    ][-1:]
    with_draft, without = map(int, re.findall(r"\d+", output)[:2])
    return with_draft, without


def spoiled(steps: int = 30, false_rate: float = 0.1, right: float = 0.86) -> float:
    """The share of answers with a wrong step in them, as in notebook 06, section 5."""
    return 1 - float((1 - wrong_share(right, false_rate)) ** steps)


def heads() -> tuple[float, float]:
    """How likely the first word is to draft and target in notebook 01."""
    source = "\n".join(cell.source for cell in cells_of("01"))
    q, p = (
        re.search(rf"^{name} = .*\[([\d.]+)", source, re.MULTILINE) for name in "qp"
    )
    assert q and p
    return float(q[1]), float(p[1])


def measured() -> dict[str, float]:
    """Times as fast as plain decoding: the first table of docs/results/real.md."""
    text = (ROOT / "docs" / "results" / "real.md").read_text("utf-8")
    table = text.split("## How right")[0]
    rows = re.findall(r"^\| ([^|]+) \| [\d.]+ \| ([\d.]+)", table, re.MULTILINE)
    speedups = {way.strip().replace("`", ""): float(speedup) for way, speedup in rows}
    return {way: speedup for way, speedup in speedups.items() if way != "ar"}


def speeds() -> Any:
    """The bars of `measured`."""
    ways = measured()
    with figure(10, 4.6, size=10) as drawing:
        axes = drawing.subplots()
        Bars("", list(ways), list(ways.values())).draw(axes)
        axes.axhline(1, color=INK, lw=1, ls=":")
        axes.set_ylabel("times as fast as plain decoding")
    return drawing


def real_steps(pair: JudgedPair) -> str:
    """A real pair of steps and its verdict, as HTML."""
    verdict = "kept: the draft's" if pair.aligned else "rejected: the target's instead"
    rows = {"draft": pair.draft, "target": pair.target, "verdict": verdict}
    cells = "".join(
        f'<tr class="{who}"><th>{who}</th><td>{html.escape(words)}</td></tr>'
        for who, words in rows.items()
    )
    return f"<table>{cells}</table>"


def of_the_real_pair() -> Slide:
    """A kept and a rejected step of the answer on which `lr play` opens."""
    kept, rejected = kept_and_rejected(first_answer())
    return Slide(
        "Two real models: one step kept, one rejected.",
        "Qwen2.5-Coder, 1.5B and 0.5B. Let the room judge both pairs before you say what the "
        "verifier said; no judge model is asked. lr play opens on this answer.",
        shown=real_steps(kept) + real_steps(rejected),
    )


# ---- the lectures


@functools.cache
def lectures() -> dict[str, tuple[str, list[Slide]]]:
    """By name of the page: the lecture's title and its slides."""
    draft_heads, target_heads = heads()
    with_draft, without = passes_of_an_always_wrong_draft()
    barrier, window = length(Schedule.SYNC), length(Schedule.DEPTH)
    ways = measured()
    slower = [way for way, speedup in ways.items() if speedup < max(ways.values())]
    first = [
        Slide("A small model writes ahead; a large one checks.",
              "Say nothing yet. Ask what the colours mean, who is ahead, what is hatched.",
              ("player.png",)),
        of_the_real_pair(),
        Slide(f"The draft says heads in {draft_heads:.0%} of all cases, the target in "
              f"{target_heads:.0%}.",
              "If we kept every drafted token, heads would come out too often. How many of "
              "the drafted heads may stay?", (("01", 1),)),
        Slide("Keep a drafted token with probability min(1, p/q); else draw from the residual.",
              "Do heads and tails by hand at the blackboard before you show the sum.",
              formula=r"q\,\min\left(1, \frac{p}{q}\right) + P(\text{rejected})\,"
                      r"\frac{(p - q)_+}{\sum (p - q)_+} = p"),
        Slide("Drawing again from p looks right, and is biased.",
              "The most frequent mistake in published code. Where do the extra heads come "
              "from?", (("01", 2),)),
        Slide("The same with steps: the draft writes three, the target four in one batch.",
              "Algorithm 1, synchronous. Point at the fourth row: what is it for? (the bonus)",
              ("lookahead.svg",)),
        Slide("A cycle emits what was accepted and one step of the target.",
              "c is the time of a draft step, a target step takes 1. Put in alpha 0 and 1.",
              formula=r"\frac{1 + \alpha + \dots + \alpha^\gamma}{1 + c\,\gamma}"),
        Slide(f"With a barrier {barrier:.2f} target steps of time, without it {window:.2f}.",
              "One script, one depth, the same durations. Above, synchronous: the target "
              "stands still while the draft writes. Below, asynchronous: both work at once.",
              clocks()),
        Slide("An answer of the tiny models: the target's rows begin as draft steps arrive.",
              "Find the rejected step: hatched work after it, and no new target step.",
              ("answer-timeline.svg",)),
        Slide("A rejection: the target's step, written for the comparison, replaces the draft's.",
              "This is the answer to the question of the lecture.", ("answer-tree.svg",)),
        Slide("A draft that is always wrong costs "
              f"{with_draft - without or 'no'} pass of the target more.",
              "From notebook 00, section 5. What is not free: the draft's work, and the rows.",
              formula=r"\text{with it} - \text{without} = "
                      rf"{with_draft} - {without} = {with_draft - without}"),
        Slide(f"Measured on two processor cores: {min(ways.values()):.2f} to "
              f"{max(ways.values()):.2f} times as fast as plain decoding.",
              "A real pair, GSM8K (docs/results/real.md). Tokens ahead win here; steps ahead "
              "need room for rows, which two cores do not have.", (speeds(),)),
    ]  # fmt: skip
    second = [
        of_the_real_pair(),
        Slide("You are the clock. Both models have begun.",
              "Notebook 04: somebody calls what is completed next.", (("04", 1),)),
        Slide("The draft runs ahead; the target writes at every node.",
              "How many target steps are in progress? Which of them may be for nothing?",
              (("04", 2),)),
        Slide("One verdict, and everything after a wrong step is dropped.",
              "What was kept of the target's work? Its own step, which is the correction.",
              (("04", 4),)),
        Slide("Two branches share their blocks.",
              "A fork copies a list of numbers, no keys and no values.", (("02", 3),)),
        Slide("Who writes into a shared block copies that one block.",
              "Only the last block can be both shared and written.", (("02", 5),)),
        Slide(f"A cycle has a best depth, here {best_depth()}. A window only grows with its depth.",
              "alpha 0.6, c 0.1. Why does the cycle fall? It pays for drafts it never uses.",
              (("05", 1),)),
        Slide("How fast can it get? One limit is the draft's mistakes, the other its speed.",
              "Ask which of the two limits a better draft moves, and which a smaller one.",
              formula=r"S_1 = \frac{1}{(1+v)(1-\alpha) + c\,\alpha} \le "
                      r"\min\left(\frac{1}{1-\alpha}, \frac{1}{c}\right)"),
        Slide(f"At every k: {order_of_schedules()}.",
              "k is the number of target steps in flight, so Algorithm 1 drafts k - 1.",
              ("theory_schedules.svg",)),
        Slide("Formula and simulation agree.",
              "The same scheduler as on models, on a simulated clock.", (("05", 2),)),
        Slide("The stopwatch does not: where the speed goes on one thread.",
              "Read from top to bottom. Which losses belong to the machine?", (("05", 5),)),
        Slide("It is slower than plain decoding when ...",
              "lr generate names the reason it saw; docs/faq.md has the list with remedies. Of "
              f"the {len(ways)} measured ways {len(slower)} are slower than the best one.",
              shown="<ol>" + "".join(f"<li>{reason}</li>" for reason in (
                  "the draft is nearly as slow as the target: <i>c</i> near 1",
                  "few draft steps are kept: α small",
                  "a pass with more rows takes longer: processors, full batches",
                  "draft and target share one machine",
                  "a verdict takes <i>v</i> &gt; α(1 − <i>c</i>)/(1 − α) target steps",
                  "answers are short: the window never fills",
              )) + "</ol>"),
        Slide("What does it sample from? A mixture, wherever meanings agree.",
              "Neither p nor q; by meaning it is the target again.", (("09", 1),)),
        Slide("The words are the draft's as often as the target would have meant the same.",
              "C: all steps with the meaning of y. With the exact verifier this is p.",
              formula=r"P(y) = q_y\,p(C) + p_y\,(1 - q(C))"),
        Slide(f"A verifier that accepts one false step in ten spoils {spoiled():.0%} of "
              "thirty-step answers.",
              "86 of 100 drafts are right here. So never quote an acceptance rate alone.",
              (("06", 3),)),
    ]  # fmt: skip
    return {
        "first": ("Tokens and steps", first),
        "second": ("Time, meaning, chance", second),
    }


QUESTIONS = {
    "Why is it not slower to be wrong?":
        "The target wrote its own step for the comparison. It replaces the draft's; nothing is "
        "computed again.",
    "The draft says heads with 0.8, the target with 0.5. How often does a drafted heads stay?":
        "In 0.5 / 0.8 = 62.5 % of all cases.",
    "Why must a rejected token not be drawn from p?":
        "min(p, q) of it came out by acceptance already; only (p - q)+ is still due.",
    "A cycle drafts three steps. How many rows has the target's batch, and why?":
        "Four: one at each prefix; the last is the bonus if all three are kept.",
    "What is synchronous about Algorithm 1?":
        "Draft, target and verifier take turns: each stage waits for the whole one before.",
    "What does the asynchronous window change in the answer?":
        "Nothing: what is emitted depends on the steps, not on when they came.",
    "The draft's third of five steps is rejected. What is dropped, what stays?":
        "Steps three to five of the draft and all that was built on them; the target's third "
        "step stays.",
    "What does a fork copy in the paged cache?":
        "A list of block numbers. The last block is copied later, if it is shared and written.",
    "α = 0.8, c = 0.1: how fast can a window get?":
        "1 / (0.2 + 0.08) = 3.6 times; at most 1 / (1 - α) = 5 with a draft that takes no time.",
    "When does a verdict make the window slower than plain decoding?":
        "If it takes more than α(1 - c) / (1 - α) target steps.",
    "A verifier accepts one false step in ten; one draft step in seven is false. How many "
    "answers of thirty steps have no wrong step?":
        f"(1 - 0.014)^30 = {1 - spoiled():.0%}.",
    "With which verifier is the answer distributed as the target's?":
        "With exact: equal tokens. A verifier of meaning gives a mixture in the draft's words.",
}  # fmt: skip
"""The page to print: questions, and below them the answers."""


# ---- the pages

STYLE = Template("""
* { box-sizing: border-box }
body { margin: 0; font-family: system-ui, sans-serif; color: $ink; background: $paper }
section { display: none; width: 100vw; height: 100vh; padding: 4vh 4vw; overflow: hidden }
section.on { display: flex; flex-direction: column; align-items: center; gap: 3vh }
section.title { justify-content: center; text-align: center }
h1 { font-size: min(7vh, 8vw); margin: 0 }
h2 { font-size: min(4.4vh, 5vw); margin: 0; text-align: center }
p { font-size: min(3vh, 4vw); margin: 0 }
.figure { flex: 1; min-height: 0; width: 100%; display: flex; flex-direction: column;
  justify-content: center; align-items: center; gap: 2vh }
img { width: 100%; flex: 1; min-height: 0; object-fit: contain }
math { font-size: min(8vh, 3.6vw) }
table { border-collapse: collapse; width: min(100%, 150vh) }
th, td { font-size: min(2.9vh, 3.6vw); padding: 0.8vh 1vw; text-align: left; vertical-align: top;
  font-weight: normal; border-bottom: 1px solid #ddd }
th { color: $soft; width: 16% } tr.verdict td { font-weight: bold }
ol { font-size: min(4vh, 4.6vw); line-height: 1.6; margin: 0 }
.notes { display: none; font-size: 2.4vh; color: $soft }
.with-notes .notes { display: block }
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
  else if (event.key === 'n') document.body.classList.toggle('with-notes');
  else if (event.key === 'f') document.documentElement.requestFullscreen();
  else return;
  event.preventDefault();
});
begin();
"""
SHEET = """
body { font-family: system-ui, sans-serif; max-width: 48em; margin: 1em auto; padding: 0 1em }
h1 { font-size: 1.3em } h2 { font-size: 1.1em; margin-top: 1.2em } li { margin: 0.35em 0 }
@media print { body { font-size: 10pt; margin: 0 } }
"""


def cells_of(number: str) -> list[Any]:
    """The cells of code of a notebook."""
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def printed_by(number: str) -> list[str]:
    """What the cells of a notebook have printed."""
    return [out.get("text", "") for cell in cells_of(number) for out in cell.outputs]


def picture(shown: Any) -> str:
    """A figure as a data address."""
    kind = "png"
    if isinstance(shown, str):
        path = ROOT / "docs" / "figures" / shown
        kind = "svg+xml" if path.suffix == ".svg" else "png"
        data = base64.b64encode(path.read_bytes()).decode()
    elif isinstance(shown, tuple):
        number, index = shown
        outputs = [out for cell in cells_of(number) for out in cell.outputs]
        pictures = [
            out.data["image/png"]
            for out in outputs
            if "image/png" in out.get("data", {})
        ]
        data = pictures[index - 1].strip()
    else:
        file = io.BytesIO()
        shown.savefig(file, dpi=150, metadata={"Software": None})
        data = base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind};base64,{data}"


def section(slide: Slide) -> str:
    """A slide as HTML."""
    sentence = html.escape(slide.sentence)
    shown = slide.shown + "".join(
        f'<img alt="{sentence}" src="{picture(each)}">' for each in slide.figures
    )
    if slide.formula:
        shown += convert(slide.formula, display="block")
    notes = f'<p class="notes">{html.escape(slide.notes)}</p>'
    return f'<section><h2>{sentence}</h2><div class="figure">{shown}</div>{notes}</section>'


def page(name: str) -> str:
    """A lecture as one page."""
    title, slides = lectures()[name]
    first = (
        f'<section class="title"><h1>{title}</h1><h2>{QUESTION}</h2><p>{PAPER_OF}</p>'
        f"<p>{KEYS}</p></section>"
    )
    last = f'<section class="title"><h1>{QUESTION}</h1></section>'
    body = "\n".join([first, *map(section, slides), last])
    return whole(title, STYLE, f"{body}\n<footer></footer><script>{TURN}</script>")


def questions() -> str:
    """The questions with their answers as one page."""
    asked, answers = (
        "".join(f"<li>{html.escape(text)}</li>" for text in texts)
        for texts in (QUESTIONS, QUESTIONS.values())
    )
    body = (
        f"<h1>Lookahead Reasoning: {len(QUESTIONS)} questions</h1><ol>{asked}</ol>"
        f"<h2>Answers</h2><ol>{answers}</ol>"
    )
    return whole("Questions", SHEET, body)


def whole(title: str, style: str, body: str) -> str:
    """A page of HTML."""
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{view}<title>{title}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


PAGES: dict[str, Callable[[], str]] = {
    "first": lambda: page("first"),
    "second": lambda: page("second"),
    "questions": questions,
}


def main() -> None:
    """Write the pages into the folder given on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path = folder / f"{name}.html"
        text = make()
        path.write_text(text, encoding="utf-8")
        count = text.count("<section")
        print(f"{path}: {count} slides" if count else path)


if __name__ == "__main__":
    main()
