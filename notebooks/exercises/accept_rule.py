"""Exercise: when is a step decided, and how? Grade it with `make grade EX=accept_rule`.

From the root the draft has written some alternatives of the next step, and the target
its own. Verdicts on the alternatives come one by one, in any order, whenever the
verifier is ready. After every event your function is asked whether the step is decided
now.

The rules: the first alternative *in their order* that is aligned joins the answer. If
none is aligned, the target's own step does (the correction). The outcome must not
depend on the order in which verdicts come, and nothing that is already certain is
waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from exercise_kit import Decide


def decide(
    verdicts: Sequence[bool | None], target_ready: bool, drafts_to_come: bool
) -> int | Decide:
    """The number of the alternative that is accepted now, `Decide.CORRECT` (take the
    target's step), or `Decide.WAIT`.

    `verdicts`: one per alternative, in their order: True aligned, False not aligned,
    None not known yet. Alternatives that the drafter failed to write are left out, so
    it may be empty. `target_ready`: whether the target's own step is there.
    `drafts_to_come`: whether drafts after the root will still be asked for; then a
    missing alternative is not the last word.
    """
    raise NotImplementedError(
        "write decide in notebooks/exercises/accept_rule.py: a number, "
        "Decide.CORRECT or Decide.WAIT"
    )
