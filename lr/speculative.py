"""Token-level speculative sampling on one page that runs: what mode sd does.

    python -m lr.speculative                    # sampled; or --temperature 0: greedy

A large *target* model writes one token per forward, and a forward that reads five
tokens takes hardly longer. So a small *draft* model writes k tokens x ahead. The target
reads all of them at once, keeps some from the front, and adds one token y:

    text ─ x₁ ─ x₂ ─ x₃ ─ x₄      xᵢ is drawn from qᵢ, the draft's distribution there
         p₁   p₂   p₃   p₄   p₅   the target's distributions, from one forward
           ✓    ✓    ✗            x₃ is rejected: y is drawn from (p₃ - q₃)₊, normalised

The text has exactly the target's distribution, whatever the draft is (arXiv 2211.17192,
2302.01318): the proof is beside the code. `lookahead.py` does the same with steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from torch import Tensor, inference_mode

from lr.engine.runner import ModelRunner
from lr.registry import SAMPLE_QUESTION
from lr.rng import Stream, uniform
from lr.spec.sampling import distribution, sample
from lr.types import Role, SamplingParams


def keeps(p: Tensor, q: Tensor, x: int, key: int) -> bool:
    """Whether x, drawn from q, stays: with probability min(1, p(x) / q(x)).

    So x comes out as a draft with probability q(x) min(1, p(x) / q(x)) =
    min(p(x), q(x)). At temperature 0, p is 1 at the likeliest token: only that stays.
    NOTE: each decision has a number of its own. A generator that is seeded anew for
    each decision would give all of them the same one."""
    return uniform(key) < min(1.0, float(p[x] / q[x]))  # q(x) > 0: x was drawn from it


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p - q)₊, normalised: the distribution [v] of y after a rejection.

    A draft is rejected with probability r = 1 - Σ min(p, q) = Σ (p - q)₊. So y comes
    out in its place with probability r (p(y) - q(y))₊ / r, and together with the drafts
    with min(p, q) + (p - q)₊ = p. The same holds at each later place, given the text."""
    due = (p - q).clamp_min(0.0)  # [v]
    r = due.sum()
    # If p = q, r is 0 and only rounding can reject a draft: due / r would be NaN.
    return due / r if r > 0 else p


@inference_mode()
def speculative_sampling(
    prompt: Sequence[int],
    draft: ModelRunner,
    target: ModelRunner,
    sampling: SamplingParams,
    stream: Stream,
    max_tokens: int,
    eos_ids: frozenset[int] = frozenset(),
    k: int = 4,
) -> Iterator[list[int]]:
    """Continue a prompt, and yield the new tokens of each round. A branch is a list of
    tokens and the cache of all but the last few, which the next forward reads."""
    ahead, text = draft.open(prompt), target.open(prompt)
    end = len(prompt) + max_tokens
    cut = None  # after an end of sequence
    while not cut and (start := len(text)) < end:
        # 1. The draft writes up to k tokens x, one forward each.
        q: list[Tensor] = []
        while len(q) < min(k, end - start - 1):
            [logits] = draft.forward([ahead])  # [v]
            q += distribution(logits[None], sampling)
            ahead.extend(sample(q[-1][None], [stream.fold_in("draft").key(len(ahead))]))
        x = ahead.tokens[start:]

        # 2. The target reads them in one forward. Row i is its distribution before x[i].
        text.extend(x)
        [rows] = target.forward([text], logits=[len(x) + 1])  # [k + 1, v]
        p = distribution(rows, sampling)

        # 3. Keep x up to the first rejection, and draw y.
        n, keys = 0, stream.fold_in("keeps")
        while n < len(x) and keeps(p[n], q[n], x[n], keys.key(start + n)):
            n += 1
        y_probs = p[n] if n == len(x) else residual(p[n], q[n])  # [v]
        [y] = sample(y_probs[None], [stream.key(start + n)])

        # 4. Cut tokens and cache back to x[:n]. Neither model has read y, nor the draft
        # x[k - 1], if that stayed: they are what its next forward reads.
        for runner, branch in ((draft, ahead), (target, text)):
            runner.rewind(branch, start + n)
            branch.append(y)
        new = text.tokens[start:]
        cut = next((i for i, token in enumerate(new, 1) if token in eos_ids), None)
        yield new[:cut]
    draft.close(ahead)
    target.close(text)


def main() -> None:
    """Answer a question: one line per round, its tokens; all but the last are drafts."""
    from lr.reasoner import Reasoner  # loads the models

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sampling, stream = SamplingParams(options.temperature), Stream.root(options.seed)
    reasoner = Reasoner()
    codec, runners = reasoner.codec, reasoner.engine.runners
    draft, target = (runners[role].lend(64) for role in (Role.DRAFT, Role.TARGET))
    prompt, eos = codec.chat(SAMPLE_QUESTION), codec.eos_ids
    for new in speculative_sampling(prompt, draft, target, sampling, stream, 512, eos):
        print("|".join(codec.decode([token]) for token in new))  # noqa: T201


if __name__ == "__main__":
    main()
