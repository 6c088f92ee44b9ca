"""How far it is from a question to the attention call."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import lr
from lr.reasoner import Reasoner

PACKAGE = str(Path(lr.__file__).parent)


def test_few_files_lie_between_a_question_and_attention() -> None:
    """In mode lr+sd, the files of all functions that wait for a call of attention."""
    ways: set[frozenset[str]] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and "attention" in file:
            files = set()
            caller: FrameType | None = frame
            while caller is not None:
                files.add(caller.f_code.co_filename)
                caller = caller.f_back
            ways.add(frozenset(file for file in files if file.startswith(PACKAGE)))

    with Reasoner() as reasoner:
        sys.setprofile(profile)
        try:
            reasoner.generate("How many coins?", mode="lr+sd", max_tokens=40)
        finally:
            sys.setprofile(None)
    assert 8 <= max(map(len, ways)) <= 14
