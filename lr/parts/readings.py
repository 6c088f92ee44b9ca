"""What the target makes of draft steps, for verifiers that ask for it (`Requires.TARGET_LOGPROBS`,
`HIDDEN`, `SAMPLING_LOGPROBS`). This file is loaded when one of them is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
        readings = runner.read(branches)
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
