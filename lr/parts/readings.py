"""What the target makes of draft steps, for verifiers that ask for it (`Requires.TARGET_LOGPROBS`,
`HIDDEN`, `SAMPLING_LOGPROBS`). This file is loaded when one of them is used.
"""

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


def read_drafts(waiting: Sequence[tuple[Request, NodeId]], *, sampling: bool = False) -> None:
    """Put into the pairs what the target makes of their draft steps, by one forward over all that
    were not read yet: the prefill that the target owes them anyway.

    Example: the prefix ends in "x", the draft step is "a b c". Fed are x a b c. The logits after x,
    a, b are those of a, b, c, and the hidden states after a, b, c are those of the step. Then the
    branch is cut back by one, since the last token of a branch is always still to be computed.
    `sampling`: the log-probabilities under the sampling distribution, too.
    """
    unread = [(request, node) for request, node in waiting if request.asked[node].logprobs is None]
    if not unread:
        return
    runner = unread[0][0].target.runner
    assert isinstance(runner, ModelRunner), "a served target has no logits, and was refused"
    branches: list[Branch] = []
    try:
        for request, node in unread:
            parent = request.parent(node)
            prefix = request.places[parent].tokens
            branches.append(request.fork(parent, len(prefix) - 1))
            branches[-1].extend((prefix[-1], *request.asked[node].draft.tokens))
        readings = read(runner, branches)
    except BaseException:
        for branch in branches:
            runner.close(branch)
        raise
    for (request, node), branch, (logits, hidden) in zip(unread, branches, readings, strict=True):
        pair = request.asked[node]
        tokens = pair.draft.tokens
        runner.rewind(branch, len(branch) - 1)
        branch.append(tokens[-1])
        if request.places[node].target is None:  # what is read need not be read again
            request.give(node, branch)
        else:
            runner.close(branch)
        before = logits[-len(tokens) - 1 : -1]  # [t, v]
        logprobs, drawn = step_logprobs(before, tokens), None
        if sampling:
            probs = distribution(before, request.target.config.sampling)  # [t, v]
            drawn = step_logprobs(probs.log(), tokens)
        hidden = hidden[-len(tokens) :]
        request.asked[node] = replace(pair, logprobs=logprobs, hidden=hidden, target_sampling=drawn)


def read(runner: ModelRunner, branches: Sequence[Branch]) -> list[tuple[Tensor, Tensor]]:
    """As `runner.forward` with logits "all" [t, v], and with the hidden states [t, e] that they are
    made from: what a forward hook on the last norm sees. No forward is replayed.
    """
    if not branches:
        return []
    lengths = [len(branch.uncomputed) for branch in branches]
    seen: list[Tensor] = []
    hook = runner.model.norm.register_forward_hook(lambda norm, given, made: seen.append(made))
    graphs, runner.graphs = runner.graphs, None
    try:
        logits = runner.forward(branches, "all")
    finally:
        hook.remove()
        runner.graphs = graphs
    hidden = torch.cat(seen).split(lengths)  # the pieces of a long prompt come one by one
    return list(zip(logits, hidden, strict=True))
