"""The target's log-probabilities and hidden states for draft steps.

This file is loaded when a verifier requires them (`Requires.TARGET_LOGPROBS`, `HIDDEN`,
`SAMPLING_LOGPROBS`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lr.engine.request import Request
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import Branch
from lr.spec.protocol import NodeId
from lr.spec.sampling import distribution, step_logprobs


def read_drafts(
    waiting: Sequence[tuple[Request, NodeId]], *, sampling: bool = False
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
        (request, node)
        for request, node in waiting
        if request.asked[node].logprobs is None
    ]
    if not unread:
        return
    runner = unread[0][0].target.runner
    assert isinstance(runner, ModelRunner), (
        "a served target has no logits and is refused earlier"
    )
    branches: list[Branch] = []
    try:
        for request, node in unread:
            parent = request.parent(node)
            prefix = request.nodes[parent].tokens
            branches.append(request.fork(parent, len(prefix) - 1))
            branches[-1].extend((prefix[-1], *request.asked[node].draft.tokens))
        readings = read(runner, branches)
    except BaseException:
        for branch in branches:
            runner.close(branch)
        raise
    for (request, node), branch, (logits, hidden) in zip(
        unread, branches, readings, strict=True
    ):
        pair = request.asked[node]
        tokens = pair.draft.tokens
        runner.rewind(branch, len(branch) - 1)
        branch.append(tokens[-1])
        if (
            request.nodes[node].target is None
        ):  # keep the branch: the tokens are computed
            request.give(node, branch)
        else:
            runner.close(branch)
        before = logits[-len(tokens) - 1 : -1]  # [t, v]
        logprobs, drawn = step_logprobs(before, tokens), None
        if sampling:
            probs = distribution(before, request.target.config.sampling)  # [t, v]
            drawn = step_logprobs(probs.log(), tokens)
        hidden = hidden[-len(tokens) :]
        request.asked[node] = replace(
            pair, logprobs=logprobs, hidden=hidden, target_sampling=drawn
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
    seen: list[Tensor] = []
    hook = runner.model.norm.register_forward_hook(
        lambda norm, given, made: seen.append(made)
    )
    graphs, runner.graphs = runner.graphs, None
    try:
        logits = runner.forward(branches, "all")
    finally:
        hook.remove()
        runner.graphs = graphs
    hidden = torch.cat(seen).split(lengths)  # a long prompt is computed in pieces
    return list(zip(logits, hidden, strict=True))
