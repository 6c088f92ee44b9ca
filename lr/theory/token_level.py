"""Token-level speculative decoding: tokens per round, and the speedup over plain decoding.

Conventions differ between sources. Here `gamma` counts *drafted* tokens; a round emits 1 to gamma +
1 tokens, for one pass of the target over gamma + 1 positions and gamma passes of the draft. The
paper's k2 counts positions: k2 = gamma + 1 (its main text calls k2 "additional tokens", its formula
and its appendix take the positions; section 2 of the paper uses gamma).

Assumptions: each draft token is accepted with probability alpha, whatever happened before; a pass
over gamma + 1 positions takes as long as one over a single position; times are constant. Source:
Leviathan et al., arXiv 2211.17192; THEORY 2a. Read next: `synchronous.py`.
"""

from __future__ import annotations

import numpy as np

from lr.theory.domain import (
    DomainError,
    Reals,
    geometric,
    nonnegative,
    numbers,
    plain,
    probability,
    whole,
)


def sd_tokens(alpha: Reals, gamma: Reals) -> Reals:
    """E N = G_{gamma+1}(alpha): tokens that a round of `gamma` >= 0 drafts emits on average, the
    one after the accepted included.

    P(N > i) = alpha^i for i <= gamma. Leviathan et al., eq. 1. Example: alpha 0.8, gamma 5:
    3.68928. Raises `DomainError` unless alpha is a probability and gamma a whole number >= 0.
    """
    return plain(geometric(probability("alpha", alpha), whole("gamma", gamma, 0) + 1))


def sd_speedup(alpha: Reals, gamma: Reals, c: Reals) -> Reals:
    """G_{gamma+1}(alpha) / (1 + gamma c): speedup over plain decoding with `gamma` drafted tokens,
    each costing c target passes.

    Rounds are independent and alike, so the rate is tokens per round over time per round
    (renewal-reward). Source: the paper, section 2; Leviathan et al., theorem 3.8. Never above 1 /
    (1 - alpha). Example: alpha 0.8, gamma 5, c 0.1: 2.45952. Raises `DomainError`.
    """
    cost = 1 + whole("gamma", gamma, 0) * nonnegative("c", c)
    return plain(sd_tokens(alpha, gamma) / cost)


def sd_speedup_of_positions(alpha2: Reals, k2: Reals, c2: Reals) -> Reals:
    """g(k2) = (1 - alpha2^k2) / ((1 - alpha2)(1 - c2 + c2 k2)): the paper's form of `sd_speedup`,
    k2 >= 1 positions per target pass.

    k2 = gamma + 1, so g(1) = 1 is plain decoding. Source: the paper, section 3.3, where the
    denominator prints c for c2; Theorem 3 and 4 need this convention. Raises `DomainError`.
    """
    return sd_speedup(alpha2, whole("k2", k2, 1) - 1, c2)


def token_acceptance(p: Reals, q: Reals) -> float:
    """sum over x of min(p(x), q(x)): how often speculative sampling accepts a token drafted from q
    for the target's law p, both [v].

    Source: Leviathan et al., corollary 3.6 (there beta). Raises `DomainError` unless both are laws
    over the same tokens.
    """
    both = [numbers(name, law) for name, law in (("p", p), ("q", q))]
    for name, law in zip("pq", both, strict=True):
        if (
            law.ndim != 1
            or law.shape != both[0].shape
            or np.any(law < 0)
            or abs(law.sum() - 1) > 1e-9
        ):
            raise DomainError(
                name,
                law.tolist(),
                "probabilities of the same tokens as the other law's, with sum 1",
            )
    return float(np.minimum(*both).sum())
