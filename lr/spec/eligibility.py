"""Which pairs never reach the verifier. One policy, one place; every schedule asks here.

A cut step (`Finish.LENGTH`) is half a sentence: as a draft it is never accepted, as a target step
it proves nothing. The step after a cut one begins in mid-sentence and is ineligible too, unless
`ignore_half_sentence` is off (the official code's rule; its limit is 100 tokens per step). A step
that ends the chain and one that does not cannot mean the same.
"""

from __future__ import annotations

from lr.types import Finish, Step, Verdict


def verdict_by_form(draft: Step, target: Step) -> Verdict | None:
    """The verdict that follows from how the two steps ended; None if the verifier has to decide."""
    if draft.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the draft step was cut")
    if target.finish is Finish.LENGTH:
        return Verdict(aligned=False, why="the target step was cut")
    if (draft.finish is Finish.EOS) != (target.finish is Finish.EOS):
        ending = "draft" if draft.finish is Finish.EOS else "target"
        return Verdict(aligned=False, why=f"only the {ending} step ends the text")
    return None


def may_be_drafted(previous: Step | None, *, ignore_half_sentence: bool) -> bool:
    """Whether the step after `previous` (None: the prompt) can be accepted as a draft at all."""
    return previous is None or previous.finish is not Finish.LENGTH or not ignore_half_sentence
