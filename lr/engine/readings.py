"""The target's log-probabilities and hidden states for draft steps, for verifiers that
require them (`Requires.TARGET_LOGPROBS`, `HIDDEN`, `SAMPLING_LOGPROBS`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.spec.protocol import NodeId
from lr.spec.sampling import distribution, step_logprobs

if TYPE_CHECKING:
    from lr.engine.answer import Answer


def read_drafts(
    waiting: Sequence[tuple[Answer, NodeId]], *, sampling: bool = False
) -> None:
    """Let the target read draft steps that it has not read yet, and store the results
    in the pairs.

    This is one forward, the prefill that the target must do anyway. `sampling`: also
    store the log-probabilities under the sampling distribution.

    Example: the prefix ends in "x", the draft step is "a b c". The forward reads x a b
    c. The logits after x, a, b are those of a, b, c, and the hidden states after a, b,
    c are those of the step. Then the branch is cut back by one, since the last token of
    a branch must be uncomputed.
    """
    unread = [
        (answer, node)
        for answer, node in waiting
        if answer.pairs[node].logprobs is None
    ]
    if not unread:
        return
    runner = unread[0][0].target.writer.runner
    assert isinstance(runner, ModelRunner)
    branches: list[Branch] = []
    try:
        for answer, node in unread:
            parent = answer.parent(node)
            answer.fork_target(parent)
            prefix = answer.nodes[parent].tokens
            tokens = (prefix[-1], *answer.pairs[node].draft.tokens)
            branches.append(answer.target.forked(parent, len(prefix) - 1, tokens))
        readings = read(runner, branches)
    except BaseException:
        for branch in branches:
            runner.close(branch)
        raise
    for (answer, node), branch, (logits, hidden) in zip(
        unread, branches, readings, strict=True
    ):
        pair = answer.pairs[node]
        tokens = pair.draft.tokens
        runner.rewind(branch, len(branch) - 1)
        branch.append(tokens[-1])
        if node in answer.target.branches:
            runner.close(branch)
        else:  # keep the branch: the tokens are computed
            answer.target.adopt(node, branch)
        before = logits[-len(tokens) - 1 : -1]  # [t, v]
        target_sampling = None
        if sampling:
            probs = distribution(before, answer.sampling)  # [t, v]
            target_sampling = step_logprobs(probs.log(), tokens)
        answer.pairs[node] = replace(
            pair,
            logprobs=step_logprobs(before, tokens),
            hidden=hidden[-len(tokens) :],  # [t, e]
            target_sampling=target_sampling,
        )


def read(
    runner: ModelRunner, branches: Sequence[Branch]
) -> list[tuple[Tensor, Tensor]]:
    """As `runner.forward` with logits "all" [t, v], and the hidden states [t, e] that
    give them.

    A forward hook on the last norm collects the hidden states, so no CUDA graph is
    replayed."""
    if not branches:
        return []
    lengths = [len(branch.uncomputed) for branch in branches]
    states: list[Tensor] = []
    hook = runner.model.norm.register_forward_hook(
        lambda module, inputs, output: states.append(output)
    )
    graphs, runner.graphs = runner.graphs, None
    try:
        logits = runner.forward(branches, "all")
    finally:
        hook.remove()
        runner.graphs = graphs
    hidden = torch.cat(states).split(lengths)  # a long prompt is computed in pieces
    return list(zip(logits, hidden, strict=True))
