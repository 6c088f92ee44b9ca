"""`scripts/peers/law.py`: the enumerator, on a rule whose law is known."""

import pytest
import torch
from peers.law import law

from lr.spec.acceptance import accept_prob, residual


def test_the_enumerator_finds_the_law_of_our_rule():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)

    def one_token(keep):
        draft = int(torch.multinomial(q, 1))
        chance = keep * accept_prob(float(p[draft]), float(q[draft]))
        if torch.rand(1) <= chance:
            return draft
        return int(torch.multinomial(residual(p, q), 1))

    lossless = law(lambda: one_token(1.0))
    assert lossless == pytest.approx(dict(enumerate(p.tolist())), abs=1e-12)
    assert law(lambda: one_token(0.5))[1] < 0.2  # the rule broken on purpose
