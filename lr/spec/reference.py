"""Lookahead Reasoning, synchronous, as a straight-line loop: Algorithm 1 of the paper (arXiv
2506.19830). Read this page first.

One cycle, with depth gamma (g <= gamma drafts are written: none follows a draft that ends the text
or was cut):

1. The *draft* writes g steps in a row, each after its own earlier ones.
2. The *target* writes its own version of each, and one more: g + 1 steps in one batch. Row j starts
   from the prefix plus the first j draft steps. The draft steps pass through the target once, as
   one trunk; row j is a fork of it, rewound to its place, so the shared prefix is computed and
   stored once.
3. The *verifier* compares row j with draft step j. The drafts before the first pair that differs
   are kept, in the draft's words. Then comes the target's step: the *correction* of the rejected
   draft, or, if all were accepted, the *bonus* step of row g.

The row that wrote the emitted target step holds the whole new prefix in its cache: it survives as
the next root, the others are released. Deciding runs no model and copies no cache. A draft that
ends the text has no row after it.

The whole algorithm, asynchronous and with several alternatives per position, is `scheduler.py`;
this page is its oracle, and tests hold the two together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from torch import Tensor

from lr.kvcache.branch import Branch
from lr.spec.drafters.mirror import follow
from lr.spec.scheduler import may_be_drafted, verdict_by_form
from lr.spec.verifiers.base import Pair, Verifier, verdicts_of
from lr.spec.write import Limits, StepJob, StepWriter
from lr.trace import StepEmitted, StepJudged, VerifierCall
from lr.types import EmittedStep, Finish, Origin, Step, Verdict


def lookahead(
    prompt: Sequence[int],
    target: StepWriter,
    draft: StepWriter,
    verifier: Verifier,
    limits: Limits,
    depth: int,
) -> Iterator[EmittedStep]:
    """Yield the steps of the answer as they are decided, until one ends the text or the token
    budget is spent.
    """
    rows = [target.runner.open(prompt)]
    draft_branch = draft.runner.open(prompt)
    chain: list[Step] = []
    written = 0
    try:
        while limits.step_limit(written) and not (chain and chain[-1].finish is Finish.EOS):
            eligible = may_be_drafted(
                chain[-1] if chain else None, ignore_half_sentence=limits.ignore_half_sentence
            )
            drafts = _write_drafts(
                draft, draft_branch, len(chain), written, limits, depth if eligible else 0
            )

            starts = _row_starts(written, drafts, limits)
            rows, logits = _plant_rows(target, rows[0], drafts, len(starts))
            jobs = [
                StepJob(row, len(chain) + j, limits.step_limit(start))
                for j, (row, start) in enumerate(zip(rows, starts, strict=True))
            ]
            steps = target.write(jobs, logits)

            verdicts = _judge(target, verifier, rows, drafts, steps)
            outcome = _outcome(len(chain), drafts, steps, verdicts)

            survivor = rows[min(len(outcome), len(rows)) - 1]
            for row in rows:
                if row is not survivor:
                    target.close(row)
            rows = [survivor]
            for emitted in outcome:
                if emitted.verdict is not None:
                    target.trace.record(StepJudged(emitted.index, emitted.verdict))
                chain.append(emitted.step)
                written += len(emitted.step.tokens)
                target.trace.record(StepEmitted(emitted))
                yield emitted
            follow(draft.runner, draft_branch, survivor.tokens)
    finally:
        for row in rows:
            target.close(row)
        draft.close(draft_branch)


def _write_drafts(
    draft: StepWriter, branch: Branch, index: int, written: int, limits: Limits, depth: int
) -> list[Step]:
    """Up to `depth` draft steps at the end of `branch`; none after one that ends the text, was cut
    or used up the budget.
    """
    drafts: list[Step] = []
    while len(drafts) < depth and (limit := limits.step_limit(written)):
        [step] = draft.write([StepJob(branch, index + len(drafts), limit)])
        drafts.append(step)
        written += len(step.tokens)
        if step.finish is not Finish.BOUNDARY:
            break
    return drafts


def _row_starts(written: int, drafts: Sequence[Step], limits: Limits) -> list[int]:
    """How many tokens the chain has where each target row begins: one row per draft, and one behind
    a draft that can go on.

    Example: 10 tokens written, drafts of 5 and 7 tokens that end in boundaries: rows begin at 10,
    15 and 22.
    """
    starts = [written]
    for step in drafts:
        starts.append(starts[-1] + len(step.tokens))
    goes_on = not drafts or (
        drafts[-1].finish is Finish.BOUNDARY and limits.step_limit(starts[-1]) > 0
    )
    return starts if goes_on else starts[:-1]


def _plant_rows(
    target: StepWriter, root: Branch, drafts: Sequence[Step], count: int
) -> tuple[list[Branch], list[Tensor] | None]:
    """The branches of `count` target rows, with the logits of each row's first token.

    The trunk (root and count - 1 draft steps) goes through the target in one forward. Row j is the
    trunk cut back to its first j draft steps. Example: a root with 1 pending token, drafts of 5 and
    7 tokens, 3 rows: one forward of 13 tokens; the rows' first tokens follow its positions 0, 5 and
    12.
    """
    if count == 1:
        return [root], None
    place, length, places, lengths = len(root.pending) - 1, len(root), [], []
    for j in range(count):
        places.append(place)
        lengths.append(length)
        if j < count - 1:
            root.extend(drafts[j].tokens)
            place, length = place + len(drafts[j].tokens), length + len(drafts[j].tokens)
    [logits] = target.runner.feed([root], logits="all")
    rows = [target.runner.fork(root) for _ in range(count - 1)]
    for row, keep in zip(rows, lengths, strict=False):
        target.runner.rewind(row, keep)
    return [*rows, root], [logits[place] for place in places]


def _judge(
    target: StepWriter,
    verifier: Verifier,
    rows: Sequence[Branch],
    drafts: Sequence[Step],
    steps: Sequence[Step],
) -> list[Verdict]:
    """Verdicts in order, up to and including the first that is not aligned: what lies behind it is
    not decided.
    """
    pairs = [
        Pair(tuple(row.tokens[: len(row) - len(step.tokens)]), draft, step)
        for row, draft, step in zip(rows, drafts, steps, strict=False)
    ]
    forms = [verdict_by_form(draft, step) for draft, step in zip(drafts, steps, strict=False)]
    open_pairs = [pair for pair, form in zip(pairs, forms, strict=True) if form is None]
    started = time.perf_counter()
    answers = iter(verdicts_of(verifier, open_pairs) if open_pairs else [])
    if open_pairs:
        target.trace.record(VerifierCall(len(open_pairs), time.perf_counter() - started))
    decided: list[Verdict] = []
    for form in forms:
        decided.append(next(answers) if form is None else form)
        if not decided[-1].aligned:
            break
    return decided


def _outcome(
    index: int, drafts: Sequence[Step], steps: Sequence[Step], verdicts: Sequence[Verdict]
) -> list[EmittedStep]:
    """The steps a cycle emits: the accepted drafts, then the target's step of the row behind them,
    if that row exists.
    """
    kept = sum(verdict.aligned for verdict in verdicts)
    emitted = [EmittedStep(index + j, drafts[j], Origin.ACCEPTED, verdicts[j]) for j in range(kept)]
    if kept < len(verdicts):
        emitted.append(
            EmittedStep(index + kept, steps[kept], Origin.CORRECTION, verdicts[kept], drafts[kept])
        )
    elif kept < len(steps):
        emitted.append(
            EmittedStep(index + kept, steps[kept], Origin.BONUS if drafts else Origin.TARGET)
        )
    return emitted
