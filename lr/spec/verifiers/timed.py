"""A verifier that is not waited for longer than a given time.

The call runs in a thread of its own. If it takes too long it is left alone, and every pair of the
batch is rejected with that reason. A thread cannot be stopped: until it ends, the verifier is busy
and further pairs are rejected at once, so it is never entered twice.

Which pairs are rejected then depends on the speed of the machine. Runs with a time limit are not
reproducible; leave it out where the same seed has to give the same answer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lr.spec.verifiers.base import Pair, Verifier, judge_safely, need_of
from lr.types import Verdict, require


class TimedVerifier:
    """`verifier`, given `seconds` for each batch. It keeps the name of `verifier`, and never
    raises.
    """

    def __init__(self, verifier: Verifier, seconds: float) -> None:
        require(seconds > 0, "seconds", seconds, "a time > 0")
        self.name = verifier.name
        self.need = need_of(verifier)
        self.verifier = verifier
        self.seconds = seconds
        self._worker: threading.Thread | None = None

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if self._worker is not None and self._worker.is_alive():
            return self._rejected(
                pairs, f"is still busy with pairs that it did not judge within {self.seconds:g} s"
            )
        answers: list[list[Verdict]] = []
        batch = list(pairs)
        self._worker = threading.Thread(
            target=lambda: answers.append(judge_safely(self.verifier, batch)),
            name=f"verifier {self.name}",
            daemon=True,
        )
        self._worker.start()
        self._worker.join(self.seconds)
        return (
            answers[0]
            if answers
            else self._rejected(pairs, f"did not answer within {self.seconds:g} s")
        )

    def _rejected(self, pairs: Sequence[Pair], what: str) -> list[Verdict]:
        return [Verdict(aligned=False, why=f"verifier {self.name} {what}") for _ in pairs]
