"""The target reads draft steps, for verifiers that require its log-probabilities of
them (`Requires.TARGET_LOGPROBS`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from lr.kvcache.branch import Branch, common_length
from lr.spec.protocol import NodeId
from lr.spec.sampling import draw, step_logprobs
from lr.types import Role

if TYPE_CHECKING:
    from lr.engine.answer import Answer


def read_drafts(
    waiting: Sequence[tuple[Answer, NodeId]],
) -> dict[tuple[Answer, NodeId], Tensor]:
    """Let the target read draft steps that it has not read yet, and store the results
    in the pairs. Returns the logits [t, v] before each token of these steps.

    This is one forward, the prefill that the target must do anyway.

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
        return {}
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
    logits_before = {}
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
        answer.pairs[node] = replace(pair, logprobs=step_logprobs(before, tokens))
        logits_before[answer, node] = before
    return logits_before


def begin_correction(answer: Answer, node: NodeId, before: Tensor) -> None:
    """Let the correction begin with what the reading of a rejected draft step decides.

    `before` [t, v]: the target's logits before each token of that step. The target's
    token at offset i of its own step is drawn with a key that depends on step and
    offset alone. As long as it is the draft's token, the next row of the reading is the
    target's own. So this changes no token of an answer in mode lr (as sample matching
    does not, `lr/spec/acceptance.py`), and the tokens need no pass.

    Example: the draft step is "a b c d", the target's draws along it are a, b, x, d. Its
    own step begins with "a b x": a and b are cached already, x is uncomputed.
    """
    parent = answer.parent(node)
    draft_tokens = answer.pairs[node].draft.tokens
    stream = answer.role_stream(Role.TARGET).fold_in(parent.index)
    keys = [stream.key(offset) for offset in range(len(draft_tokens))]
    drawn = draw(before, answer.sampling, keys)
    begun = tuple(drawn[: common_length(drawn, draft_tokens) + 1])
    if len(begun) <= len(answer.nodes[parent].begun):
        return  # another alternative has shown more of the same step
    runner = answer.target.writer.runner
    branch = runner.fork(answer.target.branches[node])
    length = len(answer.nodes[parent].tokens) + len(begun)
    runner.rewind(branch, length - 1)
    branch.append(begun[-1])
    answer.target.close(parent)
    answer.target.adopt(parent, branch)
    answer.nodes[parent].begun = begun
