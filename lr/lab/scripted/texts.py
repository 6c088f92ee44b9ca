"""Scripts that can be read: steps as short texts, one token per character.

    "ab."  ends in a boundary        "ab$"  ends the text        "ab"  was cut

Two steps mean the same if they differ in nothing but case. So a script that lets the draft write in
capitals shows in the output who wrote what: "A." is the draft's, "b." the target's. Read next:
`scripted.py`, which runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lr.lab.scripted.scripted import Prefix
from lr.types import Finish, Step, Verdict


def step_of(text: str) -> Step:
    """The step that a text stands for."""
    finish = {".": Finish.BOUNDARY, "$": Finish.EOS}.get(text[-1:], Finish.LENGTH)
    return Step(tuple(map(ord, text)), finish)


def text_of(step: Step) -> str:
    """The text that a step was made from."""
    return "".join(map(chr, step.tokens))


def quoted(step: Step) -> str:
    """The text in quotes, as transcripts show it."""
    return f'"{text_of(step)}"'


@dataclass(frozen=True)
class TextScript:
    """Texts by the number of the step, whatever came before it.

    `targets[i]`: the target's step i; behind the last it ends the text ("$"). `drafts[i]`: the
    draft's step i, alternatives separated by "|"; where none is given the drafter fails. Judged
    alone, without the target's step, a draft step with "?" in it is unclear.

    Example: targets ["a.", "b$"] and drafts ["A.", "C.|B$"] emit "A." and, with width 2, "B$"; with
    width 1, "b$".
    """

    targets: Sequence[str]
    drafts: Sequence[str] = ()

    def draft(self, prefix: Prefix, sibling: int) -> Step | None:
        """See `Script`."""
        texts = self.drafts[len(prefix)].split("|") if len(prefix) < len(self.drafts) else []
        return step_of(texts[sibling]) if sibling < len(texts) and texts[sibling] else None

    def target(self, prefix: Prefix) -> Step:
        """See `Script`."""
        return step_of(self.targets[len(prefix)] if len(prefix) < len(self.targets) else "$")

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict | None:
        """See `Script`."""
        if target is None and "?" in text_of(draft):
            return None
        aligned = text_of(draft).lower() == text_of(target or self.target(prefix)).lower()
        return Verdict(aligned, "the same" if aligned else "not the same")
