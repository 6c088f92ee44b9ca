"""Exercise: decide at the root, in any order of events. Grade it with `make grade
EX=at_the_root`.

In `accept_rule.py` somebody else kept the books. Now you do. From the root the draft
writes `width` alternatives of the next step, and the target its own. They are ready in
any order, and so are the verdicts. Your class hears of every event and says what is to
be done. The rules:

- An alternative and the target's step are compared as soon as both are there, once. If exactly one
  of them ends the text, or either was cut at the length limit, the alternative is rejected by form
  and the verifier is not asked.
- The first alternative *in their order* that is aligned is accepted, as soon as that is certain.
- If all alternatives are rejected (or the draft failed to write them), the target's step is taken,
  as soon as it is there. An alternative that is still being written is waited for.
- After the decision nothing more is asked or decided, whatever still comes in.
"""

from __future__ import annotations

from root_kit import Accept, Ask, Correct, DraftWritten, Judged, TargetWritten


class Root:
    """The books of one root, made anew for each."""

    def __init__(self, width: int) -> None:
        self.width = width

    def on(
        self, event: DraftWritten | TargetWritten | Judged
    ) -> list[Ask | Accept | Correct]:
        """What is to be done after `event`, in order: `Ask(j)` for a verdict on
        alternative j (0 to width - 1), `Accept(j)`, `Correct()`, or nothing.

        `DraftWritten(j, step)`: alternative j is there, or failed if `step` is None.
        `TargetWritten(step)`: the target's own is. `Judged(j, aligned)`: the verdict on
        j, which you asked for. A step has `ends` (it ends the text) and `cut` (at the
        length limit).
        """
        raise NotImplementedError(
            "write Root.on in notebooks/exercises/at_the_root.py: a list of Ask, Accept and Correct"
        )
