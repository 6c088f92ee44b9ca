"""The target's log-probabilities of draft steps, for verifiers that require them
(`Requires.TARGET_LOGPROBS`, `SAMPLING_LOGPROBS`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

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
    c. The logits after x, a, b are those of a, b, c. Then the branch is cut back by one,
    since the last token of a branch must be uncomputed.
    """
    unread = [
        (answer, node)
        for answer, node in waiting
        if answer.pairs[node].logprobs is None
    ]
    if not unread:
        return
    runner = unread[0][0].target.writer.runner
    branches: list[Branch] = []
    try:
        for answer, node in unread:
            parent = answer.parent(node)
            answer.fork_target(parent)
            prefix = answer.nodes[parent].tokens
            tokens = (prefix[-1], *answer.pairs[node].draft.tokens)
            branches.append(answer.target.forked(parent, len(prefix) - 1, tokens))
        readings = runner.forward(branches, "all")  # [t, v] each
    except BaseException:
        for branch in branches:
            runner.close(branch)
        raise
    for (answer, node), branch, logits in zip(unread, branches, readings, strict=True):
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
            target_sampling=target_sampling,
        )
