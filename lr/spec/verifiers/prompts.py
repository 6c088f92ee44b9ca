"""The prompts that verifiers put to models, each once, in our own words.

A step is put in by `str.format` in one pass, so braces in a step are text. Steps come behind the
instructions: the instructions are then the common head of all prompts, computed once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JudgePrompt:
    """A question about two steps (`{first}`, `{second}`), the beginning of the answer, and its two
    possible ends.
    """

    question: str
    prefill: str = "["
    aligned: str = "aligned]"
    unaligned: str = "unaligned]"

    def about(self, first: str, second: str) -> str:
        """The question about two texts."""
        return self.question.format(first=first, second=second)


JUDGE_PROMPT = JudgePrompt(
    """\
You see two versions, A and B, of one step in the solution of a problem. Could one take the place of the other without changing the \
solution? That is so if both do the same thing with the same facts and come to the same values and conclusions. How it is said does not \
matter: wording, order, notation, length. What is said does: if a number, a sign, a name, a unit, an operation or a claim differs, or \
stands in only one of them, they are not interchangeable.

Answer with one word in brackets: [aligned] if they are interchangeable, [unaligned] if they are not or if you cannot tell.

<version A>
{first}
</version A>

<version B>
{second}
</version B>"""
)

TINY_JUDGE_PROMPT = JudgePrompt("{first}\n\n{second}")
"""For a judge that was trained to do nothing else (`scripts/train_judge.py`): the two steps, no
instructions.
"""

SCORE_QUESTION = """\
How good is the step just written, as a next step towards the right answer? 0 means wrong or useless, 9 means right and useful beyond doubt.
Score from 0 to 9:"""
"""Put behind the chain and its last step, in the target's own text. The answer is a space and a
digit.
"""
