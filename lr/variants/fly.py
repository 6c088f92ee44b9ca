"""FLy (arXiv 2511.22972): a draft token that differs from the target's stays where the
target was unsure, if what follows shows that nothing went wrong.

    lr generate --variant fly
    lr generate --variant "fly(gate=0.5, window=4)"

Two conditions let a mismatch stand: the entropy of the target's raw distribution there
is above `gate` (nats), and the next `window` draft tokens all are the target's likeliest.
One part: a rule. It asks for raw logits, since at temperature 0 the distribution that a
rule is given is one-hot. Not lossless: `lr check` says how far off.

Faithful: both conditions. Different: the paper's gate is calibrated per model; and at a
temperature above 0 a match is the target's likeliest token, as in the paper's greedy
setting, while the token after the drafts is drawn.
"""

from functools import partial

from torch import Tensor

from lr.reasoner import Reasoner
from lr.spec.acceptance import AcceptanceRule, Outcome, replacement
from lr.spec.proposal import Proposal
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires


class LooseRule(AcceptanceRule):
    """Keeps a mismatch where the target is unsure and the drafts after it agree."""

    name = "fly"
    needs_fresh_noise = True  # the window looks at later drafts
    requires = Requires.LOGITS

    def __init__(self, gate: float, window: int) -> None:
        self.gate = gate
        self.window = window

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """Only one: given the drafts, nothing is left to chance but the next token."""
        assert proposal.logits is not None
        n = len(proposal)
        log_p = proposal.logits.double().log_softmax(-1)  # [n + 1, v]
        entropies = (-log_p.exp() * log_p).sum(-1).tolist()  # nats, before each token
        likeliest = proposal.logits.argmax(-1).tolist()
        agrees = [likeliest[i] == proposal.tokens[i] for i in range(n)]
        for i in range(n):
            following = agrees[i + 1 : i + 1 + self.window]
            # near the end of the drafts the window is too short to decide
            loose = entropies[i] > self.gate and len(following) == self.window
            if not (agrees[i] or (loose and all(following))):
                after = partial(replacement, p_rows[i], proposal, [i])
                return [Outcome(1.0, tuple(range(i)), after)]
        return [Outcome(1.0, tuple(range(n)), lambda: p_rows[n])]


def fly(reasoner: Reasoner, *, gate: float = 0.3, window: int = 3) -> Variant:
    """Let a mismatch stand at an entropy above `gate` if `window` drafts follow well."""
    settings = {"drafter": "draft", "num_speculative_tokens": 8}
    return Variant(rule=lambda: LooseRule(gate, window), settings=settings)
