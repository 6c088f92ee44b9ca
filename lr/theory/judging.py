"""What a judge that errs costs: acceptance, and the share of the output that says something else
than the target.

A draft step is really equivalent with probability p; the judge rejects an equivalent one with
probability `false_reject` (fr) and accepts one that is not with `false_accept` (fa), independently
of everything. False rejects cost speed only; false accepts cost the output. A judge that guesses,
"aligned" with probability rho, has fr = 1 - rho and fa = rho. Source: THEORY 2e; the paper assumes
a judge that is free and right. Judge latency is an argument of the speedups. Read next: `width.py`.
"""

from __future__ import annotations

from lr.theory.domain import Reals, geometric, plain, probability, whole


def judged_acceptance(p: Reals, false_reject: Reals, false_accept: Reals) -> Reals:
    """alpha = p (1 - fr) + (1 - p) fa: the acceptance rate that every other formula takes. Example:
    0.7, 0.2, 0.3: 0.65.
    """
    p, fr = probability("p", p), probability("false_reject", false_reject)
    return plain(p * (1 - fr) + (1 - p) * probability("false_accept", false_accept))


def wrong_share(p: Reals, false_accept: Reals) -> Reals:
    """(1 - p) fa: the share of wrong steps in the output of an asynchronous schedule, in which
    every position is judged once.
    """
    return plain((1 - probability("p", p)) * probability("false_accept", false_accept))


def wrong_share_sync(
    p: Reals, false_reject: Reals, false_accept: Reals, draft_steps: Reals
) -> Reals:
    """(1 - p) fa G_g / G_{g+1}: the same for synchronous cycles (convention B), whose bonus steps
    are never judged and never wrong."""
    a, g = (
        probability("alpha", judged_acceptance(p, false_reject, false_accept)),
        whole("draft_steps", draft_steps, 0),
    )
    return plain(wrong_share(p, false_accept) * geometric(a, g) / geometric(a, g + 1))


def nothing_wrong(p: Reals, false_accept: Reals, steps: Reals) -> Reals:
    """(1 - (1-p) fa)^steps: the probability that none of so many asynchronous steps is wrong."""
    return plain(
        (1 - probability("wrong", wrong_share(p, false_accept))) ** whole("steps", steps, 0)
    )
