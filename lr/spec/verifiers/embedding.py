"""The embedding verifier: the cosine between the two steps' sentence embeddings (arXiv 2506.19830,
Table 2: thresholds 0.85, 0.95).

Cheap, and blind where it matters most: one other digit hardly moves an embedding. `encoder.py` has
the encoder; any function from texts to unit vectors will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from lr.spec.verifiers.asked import Decode
from lr.spec.verifiers.base import Need, Pair
from lr.types import Verdict, require

Embed = Callable[[Sequence[str]], Tensor]
"""n texts to their embeddings [n, e], each of length 1."""


class EmbeddingVerifier:
    """Accepts iff the cosine of the two steps' embeddings is at least `threshold`. `decode` turns
    token ids into text.
    """

    name = "embedding"
    need = Need.TARGET_STEP

    def __init__(self, embed: Embed, decode: Decode, *, threshold: float = 0.95) -> None:
        require(-1 <= threshold <= 1, "threshold", threshold, "a cosine, -1 to 1")
        self.embed, self.decode = embed, decode
        self.threshold = threshold

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if not pairs:
            return []
        texts = [
            self.decode(step.tokens).strip()
            for pair in pairs
            for step in (pair.target_step, pair.draft)
        ]
        rows = self.embed(texts).double()
        return [self._verdict(cosine) for cosine in (rows[0::2] * rows[1::2]).sum(-1).tolist()]

    def _verdict(self, cosine: float) -> Verdict:
        if math.isnan(cosine):
            return Verdict(aligned=False, why="the embeddings are not numbers")
        return Verdict(cosine >= self.threshold, why=f"cosine {cosine:.3f}", score=cosine)
