"""Replay of an acceptance process: real models run, the process decides. So the true cost of a run
is measured without real weights.

Every forward pass, every drawn token, every fork and every message is real, at the true shapes.
What models would say is replaced on the seams that are there for it anyway:

    where a step ends             the segmenter counts tokens up to a length from the process
    whether a draft step stays    the verifier throws a coin of alpha1, after the judge has read the pair, if there is one
    whether a draft token stays   the acceptance rule throws a coin of alpha2 per token, after the target has looked at it
    what prompt lookup finds      the drafter always finds something, for nothing

No answer means anything and no mode is lossless here; tokens per second, passes and acceptance
rates are what comes out. (How a trace is run again, event for event, is in `replay.py`: there the
models decide as they did.) Read next: `process.py`; `lr/lab/bench/gpu_modes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lr.engine.answer import Asked, Models, Run
from lr.engine.plan import WriterPlan
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.lab.bench.process import LengthsOf, Process
from lr.options import DRAFT_MODEL_DRAFTERS, GenerateOptions
from lr.rng import uniform
from lr.spec.acceptance import AcceptanceRule, Decision, Draws, Outcome, Proposal, rows_of
from lr.spec.drafters import Context
from lr.spec.sampling import sample
from lr.spec.token_sd import Speculation
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.simple import RandomVerifier
from lr.types import Coupling, Role, Verdict

INSTRUCTIONS, FRAME = 180, 32
"""Tokens of a judge's prompt beside the two steps: what all prompts have in common, read once, and
what stands around the steps. About what `spec/verifiers/judge.py` and a chat template come to."""
JUDGED_AT_ONCE = 8
"""Pairs of one forward of the judge."""


class _Decided(Asked):
    """What a process changes in a question: where its steps end, and what becomes of guessed
    tokens.
    """

    process: Process

    def plan(self, role: Role) -> WriterPlan:
        """As the engine's, but steps end where the process says and no token ends the sequence."""
        return replace(
            super().plan(role), segmenter=LengthsOf(self.process, role), eos_ids=frozenset()
        )

    def _speculation(self, role: Role) -> Speculation | None:
        """As the engine's, but the process decides; without a draft model something is always
        found.
        """
        k, rule = self.options.num_speculative_tokens, ReplayRule(self.process.alpha2)
        if self.options.drafter not in DRAFT_MODEL_DRAFTERS:
            return Speculation(ReplayDrafter(self.models.codec.vocab_size), rule, k)
        made = super()._speculation(role)
        return None if made is None else replace(made, rule=rule)


class ReplayAsked(_Decided):
    """One question, as `Asked`, but decided by a process: for a `Crowd`. `options.drafter` ngram or
    draft.
    """

    def __init__(
        self,
        models: Models,
        verifier: ReplayVerifier,
        prompt: str,
        options: GenerateOptions,
        process: Process,
    ) -> None:
        self.process = process
        super().__init__(models, verifier, prompt, options)


class ReplayRun(_Decided, Run):
    """One answer in the making, as `Run`, but decided by a process. `options.drafter` ngram or
    draft.
    """

    def __init__(
        self,
        models: Models,
        verifier: ReplayVerifier,
        prompt: str,
        options: GenerateOptions,
        process: Process,
    ) -> None:
        self.process = process
        super().__init__(models, verifier, prompt, options)


class ReplayDrafter:
    """Prompt lookup that always finds k tokens, and knows nothing: they follow each other in the
    vocabulary of `vocab_size` ids.
    """

    name = "replay"
    trees = False
    coupling = Coupling.INDEPENDENT

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def propose(self, contexts: Sequence[Context], k: int) -> list[Proposal]:
        return [self._found(context.tokens[-1], min(k, context.limit)) for context in contexts]

    def forget(self, branches: Iterable[Branch]) -> None:
        """Nothing is kept."""

    def _found(self, last: int, k: int) -> Proposal:
        return Proposal.chain([(last + i) % self.vocab_size for i in range(1, k + 1)])


class ReplayRule(AcceptanceRule):
    """Keeps each draft token with probability `alpha`, up to the first that goes; the token behind
    is the target's own draw.

    The coins are keyed by the place, so the same place falls alike however often it is looked at.
    Example: coins 0.1, 0.9, 0.2 at alpha 0.5: one token is kept, and the target's draw behind it
    follows.
    """

    name = "replay"
    lossless = False
    trees = False
    draws_uniform = False

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def outcomes(self, p_rows: Tensor, proposal: Proposal) -> list[Outcome]:
        """The law given the drafts: n tokens kept with probability alpha^n (1 - alpha), all with
        alpha^k.
        """
        k, alpha = len(proposal), self.alpha
        chances = [alpha**n * (1 - alpha) for n in range(k)] + [alpha**k]
        return [
            Outcome(chance, tuple(range(n)), lambda row=p_rows[n]: row, untouched=True)  # type: ignore[misc]
            for n, chance in enumerate(chances)
        ]

    @torch.inference_mode()
    def verify(
        self, probs: Tensor, proposals: Sequence[Proposal], draws: Sequence[Draws]
    ) -> list[Decision]:
        """One decision per branch from flat `probs` [sum of (n + 1), v]; see
        `AcceptanceRule.verify`.
        """
        parts = rows_of(probs, proposals, draws, trees=False)
        kept = [
            self._kept(len(proposal), draw) for proposal, draw in zip(proposals, draws, strict=True)
        ]
        rows = torch.stack([part[n] for part, n in zip(parts, kept, strict=True)])
        tokens = sample(rows, [draw.sample_key(n) for draw, n in zip(draws, kept, strict=True)])
        return [Decision(tuple(range(n)), token) for n, token in zip(kept, tokens, strict=True)]

    def _kept(self, k: int, draw: Draws) -> int:
        coins = (uniform(draw.stream.child("replay").key(draw.offset + i)) for i in range(k))
        return next((n for n, coin in enumerate(coins) if coin >= self.alpha), k)


@dataclass
class JudgeReads:
    """What a judge's verdict costs: one forward over the prompts of all pairs; the instructions
    they share are read once and forked.
    """

    runner: ModelRunner
    head: Branch | None = None

    def read(self, pairs: Sequence[Pair]) -> None:
        """Read the pairs and wait for the outcome, which nobody looks at."""
        for start in range(0, len(pairs), JUDGED_AT_ONCE):
            self._read(pairs[start : start + JUDGED_AT_ONCE])

    def _read(self, pairs: Sequence[Pair]) -> None:
        runner = self.runner
        if self.head is None:
            self.head = runner.open(list(range(INSTRUCTIONS)))
            runner.feed([self.head])
        branches = [runner.fork(self.head) for _ in pairs]
        try:
            for branch, pair in zip(branches, pairs, strict=True):
                steps = (*pair.target_step.tokens, *pair.draft.tokens)
                branch.extend([*(token % runner.vocab_size for token in steps), *range(FRAME)])
            torch.stack(runner.feed(branches)).argmax(-1).tolist()
        finally:
            for branch in branches:
                runner.close(branch)

    def close(self) -> None:
        """Give the instructions' blocks back."""
        if self.head is not None:
            self.runner.close(self.head)
            self.head = None


class ReplayVerifier(Verifier):
    """Accepts with probability alpha1, after `judge` has read the pairs, if there is one."""

    requires = Requires.TARGET_STEP

    def __init__(self, process: Process, judge: JudgeReads | None = None) -> None:
        self.coin = RandomVerifier(process.alpha1, process.seed)
        self.name = f"replay:{process.alpha1:g}"
        self.reads = judge

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if self.reads is not None and pairs:
            self.reads.read(pairs)
        return self.coin.judge(pairs)
