"""The way of one answer through the files, from a run: who hands it to whom.

    python scripts/way_of_an_answer.py            # print the table of stations
    python scripts/way_of_an_answer.py --write    # put it into docs/algorithm.md

A station is a call from one file into another that gets an object of this answer: its
question, its scheduler, its sides, a step that is being written. Where both sides get
the same call, it is one station. What only
computes (models, sampling, the verifier) gets tokens and tensors, and is no station; nor
is reading the question or a step, which are values.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import lr
from lr.engine.answer import Answer
from lr.engine.question import Question
from lr.engine.side import Side
from lr.reasoner import Reasoner
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.write import StepJob
from lr.tiny.language import Split, problem

PACKAGE = Path(lr.__file__).parent
PAGE = PACKAGE.parent / "docs" / "algorithm.md"
BEGIN, END = "<!-- stations -->\n", "<!-- end of stations -->\n"
OWN = (Question, Answer, LookaheadScheduler, Side, StepJob)
"""The classes whose objects belong to one answer."""


@dataclass(frozen=True)
class Station:
    """A call of `function` in `file` (a definition is at `line`), from `caller`, with
    an object of one of the classes `gets`."""

    caller: str
    file: str
    line: int
    function: str
    gets: list[str]


def way() -> list[Station]:
    """The calls from one file into another, each once, in order."""
    stations: dict[tuple[str, str, str], Station] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_back is None:
            return
        file = inside(frame)
        caller = inside(frame.f_back)
        if not file or not caller or file == caller:
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name in names:
            value = frame.f_locals.get(name)
            values = value if isinstance(value, list) else [value]
            own = [type(each).__name__ for each in values if isinstance(each, OWN)]
            if name == "self" and own in (["Question"], ["StepJob"]):
                continue  # a value is read
            if own:
                place = (caller, file, code.co_name)
                station = Station(*place[:2], code.co_firstlineno, code.co_name, [])
                gets = stations.setdefault(place, station).gets
                gets.extend({own[0]}.difference(gets))
                return

    with Reasoner() as reasoner:
        sys.setprofile(profile)
        try:
            reasoner.generate(problem(Split.TEST, 0).question, mode="lr")
        finally:
            sys.setprofile(None)
    return list(stations.values())


def inside(frame: FrameType) -> str:
    """The file of a frame, relative to the package; "" for one outside of it."""
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else ""


def table(stations: list[Station]) -> str:
    """The stations in Markdown."""
    lines = ["||from|to|there|gets|", "|-|-|-|-|-|"]
    for number, s in enumerate(stations, 1):
        place = f"[{s.file}:{s.line}](../lr/{s.file}#L{s.line})"
        gets = ", ".join(s.gets)
        lines.append(f"|{number}|{s.caller}|{place}|`{s.function}`|{gets}|")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    stations = way()
    text = table(stations)
    print(text)
    rooms = {s.file for s in stations} | {s.caller for s in stations}
    pairs = {(s.caller, s.file) for s in stations}
    print(len(stations), "stations,", len(pairs), "pairs of", len(rooms), "files")
    if parser.parse_args().write:
        page = PAGE.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + text + END + after, "utf-8")


if __name__ == "__main__":
    main()
