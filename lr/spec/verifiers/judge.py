"""The judge: a language model is asked whether two steps mean the same (arXiv 2506.19830, section
3.2 and Appendix A).

The answer is [aligned] or [unaligned]. It is begun for the model, and the probabilities of the two
ways to go on are read off one distribution; nothing is generated. So one ragged forward decides all
pending pairs, and a pair has a score, P(aligned) as a share of both, that a threshold turns into a
verdict: a judge has an ROC curve, not just an opinion. All prompts begin with the same
instructions, which are computed once and forked (`kept.py`).

It sees the steps' texts, not the problem or the chain. Read next: `prompts.py`; `folded.py`, which
spares it equal texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from lr.spec.drafters.mirror import common
from lr.spec.verifiers.answers import part, read_answer
from lr.spec.verifiers.asked import AskedModel, Decode
from lr.spec.verifiers.base import Need, Pair
from lr.spec.verifiers.kept import KeptPrefixes, Row
from lr.spec.verifiers.prompts import JUDGE_PROMPT, TINY_JUDGE_PROMPT, JudgePrompt
from lr.types import Verdict, require


class JudgeVerifier:
    """Accepts iff the judge's score is at least `threshold`. The first step of a prompt is the
    target's, the second the draft's.

    `decode` reads the steps, whose ids are the target's. `prompt` None: the one made for `judge`.
    Where the two answers together hold less than `least_mass` of the probability, the judge says
    something else altogether, and the pair is rejected for that.
    """

    name = "judge"
    need = Need.TARGET_STEP

    def __init__(
        self,
        judge: AskedModel,
        decode: Decode,
        *,
        threshold: float = 0.5,
        prompt: JudgePrompt | None = None,
        least_mass: float = 0.01,
    ) -> None:
        require(0 <= threshold <= 1, "threshold", threshold, "a probability, 0 to 1")
        require(0 <= least_mass <= 1, "least_mass", least_mass, "a probability, 0 to 1")
        self.model, self.decode = judge, decode
        self.threshold, self.least_mass = threshold, least_mass
        self.prompt = prompt or (TINY_JUDGE_PROMPT if judge.tiny else JUDGE_PROMPT)
        answers = [judge.encode(self.prompt.aligned), judge.encode(self.prompt.unaligned)]
        self.parting = part(answers)
        self.begun = [*judge.encode(self.prompt.prefill), *self.parting.common]
        self.prefixes = KeptPrefixes(judge.runner)
        two = [self.row(text, text) for text in ("0", "Then")]
        self.head = two[0][: common(*two)]

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        texts = [
            (self._text(pair.target_step.tokens), self._text(pair.draft.tokens)) for pair in pairs
        ]
        if self.head:
            self.prefixes.warm(self.head)
        rows = self.prefixes.logits([Row(self.row(*two)) for two in texts])
        return [self._verdict(logits[-1]) for logits in rows]

    def row(self, first: str, second: str) -> list[int]:
        """The ids of the whole prompt about two texts, answer begun: what is fed to the judge."""
        return [*self.model.chat(self.prompt.about(first, second)), *self.begun]

    def close(self) -> None:
        """Give the cached head of the prompt back; the next call computes it anew."""
        self.prefixes.close()

    def _text(self, tokens: Sequence[int]) -> str:
        return self.decode(tokens).strip()

    def _verdict(self, logits: Tensor) -> Verdict:
        (score, _), mass = read_answer(logits, self.parting)
        if math.isnan(score):
            return Verdict(aligned=False, why="the judge's probabilities are not numbers")
        if mass < self.least_mass:
            return Verdict(
                aligned=False,
                why=f"the judge answers something else (the two answers hold {mass:.1e})",
            )
        return Verdict(
            score >= self.threshold, why=f"aligned with {score:.3f} for the judge", score=score
        )
