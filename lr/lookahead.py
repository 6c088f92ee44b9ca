"""Lookahead Reasoning on one page that runs: the whole method of arXiv 2506.19830.

    python -m lr.lookahead      # a sample problem, on the tiny models; or --help

Reasoning models write in steps, separated by blank lines. Most steps are easy, and
their meaning matters, not their wording. So a small *draft* model writes the next steps
ahead, ŝ₁ ŝ₂ ŝ₃, and the large *target* model its own version of each of them:

    prompt ──ŝ₁──▶ node ──ŝ₂──▶ node ──ŝ₃──▶ node     the draft's steps join the nodes
      └─s₁          └─s₂         └─s₃         └─s₄    the target writes one at each node

The target's steps do not depend on each other: they are rows of one batch, hardly longer
than its longest row. A *verifier* compares ŝ and s at each node, in order. If both mean
the same, ŝ is *accepted*; else s, the *correction*, replaces it, and the rest is dropped.

A *branch* is tokens with their keys and values in a paged cache; a fork shares them. A
node's target branch holds its prefix, then the target's step. So after every decision
the new root has its branch: the accepted node's, or the old root's, with the correction.

`algorithm_1` is the synchronous method as the paper prints it, `Lookahead` the whole one:
asynchronous (section 3.2) and with alternatives. Read next: `model/qwen.py`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from lr.engine.runner import ModelRunner
from lr.errors import LRError
from lr.kvcache.branch import Branch
from lr.registry import SAMPLE_QUESTION, require_readable
from lr.rng import Stream
from lr.spec.proposal import Draws
from lr.spec.protocol import Limits, Schedule
from lr.spec.runner import read_up_to
from lr.spec.sampling import distribution, sample
from lr.spec.token_sd import Context, Speculation, speculate
from lr.spec.verifiers.base import Pair, Verifier, verify
from lr.spec.write import Segmenter
from lr.types import EmittedStep, Finish, Origin, SamplingParams, Step, Verdict


@dataclass(eq=False)
class Writing:
    """A step being written on `branch`. Token t is drawn with the key (stream, t)."""

    branch: Branch
    stream: Stream
    limit: int  # in tokens
    segmenter: Segmenter  # finds the boundary
    tokens: list[int] = field(default_factory=list)
    step: Step | None = None  # set when it is finished
    verdict: Verdict | None = None  # on a draft step
    kept: list[int] = field(default_factory=list)  # of a rejected one: what is kept
    node: Node | None = None  # that a draft step leads to, unless it is rejected


@dataclass(eq=False)
class Writer:
    """A model in its role: how its tokens are drawn, where its steps end."""

    runner: ModelRunner
    sampling: SamplingParams
    segmenter: Callable[[], Segmenter]  # makes one for each step
    eos_ids: frozenset[int]
    stream: Stream
    speculation: Speculation | None = None  # token-level speculation inside the steps
    branches: list[Branch] = field(default_factory=list)  # all that are open

    def open(self, tokens: Sequence[int]) -> Branch:
        """A branch of `tokens`, all *uncomputed*: the next forward reads them."""
        self.branches.append(self.runner.open(tokens))
        return self.branches[-1]

    def fork(self, branch: Branch, length: int) -> Branch:
        """A new branch of the first `length` tokens, the last of them uncomputed."""
        read_up_to(self.runner, branch, length - 1)  # once for both
        self.branches.append(self.runner.fork(branch))
        self.runner.rewind(self.branches[-1], length - 1)
        self.branches[-1].append(branch.tokens[length - 1])
        return self.branches[-1]

    def close_but(self, branches: set[Branch]) -> None:
        """Close all other branches, which frees their part of the cache."""
        for branch in [branch for branch in self.branches if branch not in branches]:
            if self.speculation:
                self.speculation.drafter.forget([branch])
            self.runner.close(branch)
            self.branches.remove(branch)

    def begin(self, branch: Branch, stream: Stream, limit: int) -> Writing:
        return Writing(branch, stream, limit, self.segmenter())

    @torch.inference_mode()
    def write(self, live: Sequence[Writing]) -> None:
        """Continue these steps by one ragged forward: by a token each, or by a round of
        token-level speculation (section 3.3). The last token stays uncomputed."""
        draws = [Draws(w.stream, len(w.tokens)) for w in live]
        if self.speculation:
            contexts = []
            for w, draw in zip(live, draws, strict=True):  # a round adds a token
                contexts.append(Context(w.branch, w.limit - len(w.tokens) - 1, draw))
            rounds = speculate(self.runner, self.sampling, self.speculation, contexts)
            written = [end.tokens for end in rounds]
        else:
            logits = self.runner.forward([w.branch for w in live])
            probs = distribution(torch.stack(logits), self.sampling)  # [steps, v]
            tokens = sample(probs, [draw.sample_key(0) for draw in draws])
            for w, token in zip(live, tokens, strict=True):
                w.branch.append(token)
            written = [(token,) for token in tokens]
        for w, new in zip(live, written, strict=True):
            for number, token in enumerate(new, start=1):
                w.tokens.append(token)
                if token in self.eos_ids:
                    finish = Finish.EOS
                elif w.segmenter.feed(token):  # the blank line is complete
                    finish = Finish.BOUNDARY
                elif len(w.tokens) == w.limit:
                    finish = Finish.LENGTH
                else:
                    continue
                w.step = Step(tuple(w.tokens), finish)
                self.runner.rewind(w.branch, len(w.branch) - len(new) + number - 1)
                w.branch.append(token)  # a round may have gone past the end
                break

    def finish(self, steps: Sequence[Writing]) -> list[Step]:
        """Write until all these steps are finished."""
        while live := [w for w in steps if not w.step]:
            self.write(live)
        return [w.step for w in steps if w.step]


def algorithm_1(
    prompt: Sequence[int],
    draft: Writer,
    target: Writer,
    verifier: Verifier,
    limits: Limits,
    gamma: int = 4,
) -> Iterator[EmittedStep]:
    """Algorithm 1 (section 3.1), without kept tokens: cycles of γ draft steps, γ + 1 target
    steps and verdicts. Theorem 1: a cycle emits (1 - α^(γ+1)) / (1 - α) on average."""

    def room(length: int) -> int:  # in tokens, for the step after so long a prefix
        return limits.step_limit(length - len(prompt))

    index = 0  # the number of the next step
    previous = None  # the step before it
    trunk = target.open(prompt)
    ahead = draft.open(prompt)
    try:
        while room(len(trunk)) and not (previous and previous.finish is Finish.EOS):
            # The draft writes up to γ steps ŝ. Row j of the target starts after j.
            drafts: list[Step] = []
            starts = [len(trunk)]
            limit = limits.draft_limit(len(ahead) - len(prompt), previous)
            while limit and len(drafts) < gamma:
                stream = draft.stream.fold_in(index + len(drafts))
                drafts += draft.finish([draft.begin(ahead, stream, limit)])
                goes_on = drafts[-1].finish is Finish.BOUNDARY and room(len(ahead)) > 0
                starts += [len(ahead)] if goes_on else []
                written = len(ahead) - len(prompt)
                limit = limits.draft_limit(written, None) if goes_on else 0

            # The target reads the drafts once. Its rows are forks, cut to their starts.
            trunk.extend(token for step in drafts for token in step.tokens)
            rows = [target.fork(trunk, start) for start in reversed(starts)][::-1]
            noise = [target.stream.fold_in(index + j) for j in range(len(rows))]
            steps = target.finish([*map(target.begin, rows, noise, map(room, starts))])

            # The drafts before the first mismatch are emitted, then the target's step.
            pairs = []
            for j, (start, d, s) in enumerate(zip(starts, drafts, steps, strict=False)):
                pairs.append(Pair(tuple(trunk.tokens[:start]), d, s, index=index + j))
            verdicts = verify(verifier, pairs)
            j = 0
            while j < len(drafts) and verdicts[j].aligned:
                yield EmittedStep(index + j, drafts[j], Origin.ACCEPTED, verdicts[j])
                j += 1
            if j == len(starts):  # the last draft ended the text, or used up the budget
                return
            i = index + j
            previous = s = steps[j]
            if j < len(drafts):
                yield EmittedStep(i, s, Origin.CORRECTION, verdicts[j], drafts[j])
            else:
                yield EmittedStep(i, s, Origin.BONUS if drafts else Origin.TARGET)

            # Row j holds the new prefix and is the next trunk; the draft follows it.
            index = i + 1
            trunk = rows[j]
            target.close_but({trunk})
            draft.runner.rewind(ahead, starts[j])
            ahead.extend(s.tokens)
    finally:
        target.close_but(set())
        draft.close_but(set())


@dataclass(eq=False)
class Node:
    """A prefix: the emitted steps, then draft steps. Both models may write here."""

    index: int  # the number of the step that follows
    tokens: list[int]  # the whole prefix, prompt included
    limit: int  # the most tokens that the next step may have; 0 if none follows
    previous: Step | None  # the last step of the prefix; None if it is the prompt
    draft_branch: Branch
    target_branch: Branch
    drafts: list[Writing] = field(default_factory=list)  # the alternatives ŝ, in order
    target_row: Writing | None = None  # the target's own step s, once it is started


def tree(root: Node) -> list[Node]:
    """The open nodes, level by level. Whatever leaves the tree is cancelled."""
    nodes = [root]
    for node in nodes:  # the list grows while it is read
        nodes += [d.node for d in node.drafts if d.node and d.node.limit]
    return nodes


@dataclass(eq=False)
class Lookahead:
    """The whole method, turn by turn. `root`: the end of the emitted steps, with the
    tree below it. Levels count from the root; in `SYNC`, from where the cycle began:

        schedule  drafts from levels  target steps from levels
        SYNC      0 .. depth - 1      0 .. depth, after all drafts  Algorithm 1
        PAPER     0 .. depth - 1      0 .. depth - 1                Appendix B
        DEPTH     0 .. depth - 1      0 .. depth                    the official code"""

    prompt: Sequence[int]
    draft_writer: Writer
    target_writer: Writer
    verifier: Verifier
    limits: Limits
    schedule: Schedule = Schedule.DEPTH
    depth: int = 4
    width: int = 1  # alternatives per step (section 3.1)
    max_target_rows: int | None = None  # at a time: k₁ in k₁ k₂ ≤ M (section 3.3)
    shares_noise: bool = False  # of the target, with first alternatives
    draft_forwards: int = 8  # per target forward (paper: 1 / c)

    def steps(self) -> Iterator[EmittedStep]:
        """The steps of the answer as they are decided."""
        self.first = turn = 0  # `first` is the number of the step at level 0
        limit = self.limits.step_limit(0)
        writers = self.draft_writer, self.target_writer
        draft_branch, target_branch = (writer.open(self.prompt) for writer in writers)
        self.root = Node(0, [*self.prompt], limit, None, draft_branch, target_branch)
        try:
            while self.root.limit:
                turn += 1
                drafting, rows = self.start()
                if rows and (not drafting or turn % self.draft_forwards == 0):
                    self.target_writer.write(rows)
                if drafting:
                    self.draft_writer.write(drafting)
                self.grow()
                unfinished = [w for w in drafting + rows if not w.step]
                if self.schedule is Schedule.SYNC and unfinished:
                    continue  # the barrier: each stage waits for the whole previous one
                self.judge()
                yield from self.decide()
                nodes = tree(self.root)  # close the branches of all that left the tree
                in_work = {d.branch for n in nodes for d in n.drafts if not d.step}
                self.target_writer.close_but({n.target_branch for n in nodes})
                self.draft_writer.close_but({n.draft_branch for n in nodes} | in_work)
        finally:
            for writer in writers:
                writer.close_but(set())

    def start(self) -> tuple[list[Writing], list[Writing]]:
        """Start what may start, nearest to the root first. Returns unfinished steps."""
        nodes = tree(self.root)
        for node, limit in [(n, self.draft_limit(n)) for n in nodes]:
            for j in range(self.width if limit else 0):
                shares = self.shares_noise and j == 0
                writer = self.target_writer if shares else self.draft_writer
                stream = writer.stream.fold_in(node.index, *([j] if j else []))
                branch = self.draft_writer.fork(node.draft_branch, len(node.tokens))
                node.drafts.append(self.draft_writer.begin(branch, stream, limit))
        drafting = [d for n in nodes for d in n.drafts if not d.step]
        rows = [n.target_row for n in nodes if n.target_row and not n.target_row.step]
        deepest = self.depth - 1 if self.schedule is Schedule.PAPER else self.depth
        most_rows = len(nodes) if self.max_target_rows is None else self.max_target_rows
        for node in nodes if not (self.schedule is Schedule.SYNC and drafting) else []:
            due = not node.target_row and node.index - self.first <= deepest
            if due and len(rows) < most_rows:
                stream = self.target_writer.stream.fold_in(node.index)
                branch = node.target_branch
                node.target_row = self.target_writer.begin(branch, stream, node.limit)
                rows.append(node.target_row)
        return drafting, rows

    def draft_limit(self, node: Node) -> int:
        """The longest draft step after a node; 0: none may start, or it has started."""
        due = node.index - self.first < self.depth and not node.drafts
        written = len(node.tokens) - len(self.prompt)
        return self.limits.draft_limit(written, node.previous) if due else 0

    def grow(self) -> None:
        """Add a node for each new draft step. A cut one is never accepted."""
        for parent, d in [(n, d) for n in tree(self.root) for d in n.drafts]:
            step = None if d.node or d.verdict else d.step
            if step and step.finish is not Finish.LENGTH:
                length = len(parent.tokens)
                branch = self.target_writer.fork(parent.target_branch, length)
                branch.extend(step.tokens)
                d.node = self.after(parent, step, d.branch, branch)

    def after(self, node: Node, step: Step, draft: Branch, target: Branch) -> Node:
        tokens = [*node.tokens, *step.tokens]
        limit = self.limits.step_limit(len(tokens) - len(self.prompt))
        limit = 0 if step.finish is Finish.EOS else limit
        return Node(node.index + 1, tokens, limit, step, draft, target)

    def judge(self) -> None:
        """Verify every pair that is complete: ŝ and s from the same node."""
        pairs = {
            d: Pair(tuple(node.tokens), d.step, node.target_row.step, index=node.index)
            for node in tree(self.root)
            if node.target_row and node.target_row.step
            for d in node.drafts
            if d.step and not d.verdict
        }
        verdicts = verify(self.verifier, list(pairs.values()))
        for d, verdict in zip(pairs, verdicts, strict=True):
            d.verdict = verdict
            d.kept = d.tokens[: verdict.keep]
            d.node = d.node if verdict.aligned else None

    def decide(self) -> Iterator[EmittedStep]:
        """Decide at the root, alternatives in order, while a decision is possible."""
        while self.root.limit:
            root = self.root
            i = root.index
            s = root.target_row.step if root.target_row else None
            hopes = [d for d in root.drafts if not d.verdict or d.verdict.aligned]
            best = hopes[0] if hopes else None
            most = max(root.drafts[::-1], key=lambda d: len(d.kept), default=None)
            if s and most and not best and [*s.tokens[: len(most.kept)]] != most.kept:
                branch = self.target_writer.fork(root.target_branch, len(root.tokens))
                branch.extend(most.kept)  # the target continues these
                root.target_branch = branch
                stream = self.target_writer.stream.fold_in(i, "kept")
                root.target_row = self.target_writer.begin(branch, stream, root.limit)
                for token in most.kept:
                    root.target_row.tokens.append(token)
                    root.target_row.segmenter.feed(token)
                return
            if best and best.step and best.verdict and best.node:
                out = EmittedStep(i, best.step, Origin.ACCEPTED, best.verdict)
                self.root = best.node
            elif s and not best and not self.draft_limit(root):
                if most:  # all are rejected; that which keeps most is reported
                    out = EmittedStep(i, s, Origin.CORRECTION, most.verdict, most.step)
                else:
                    bonus = self.schedule is Schedule.SYNC and i > self.first
                    out = EmittedStep(i, s, Origin.BONUS if bonus else Origin.TARGET)
                root.draft_branch.extend(s.tokens)
                self.root = self.after(root, s, root.draft_branch, root.target_branch)
            else:
                return
            if out.origin is not Origin.ACCEPTED or self.schedule is not Schedule.SYNC:
                self.first = i + 1  # without a barrier the window slides
            yield out


def main() -> None:
    """Answer a question and print each step, and who wrote it, once it is decided."""
    from lr import page_engine  # calls `Lookahead`
    from lr.reasoner import Reasoner  # loads the models

    parser = ArgumentParser(usage="python -m lr.lookahead [QUESTION] [--OPTION VALUE]")
    parser.add_argument("question", nargs="?", default=SAMPLE_QUESTION)
    models = {"model": "tiny-target", "draft_model": "tiny-draft", "verifier": "oracle"}
    modes = {"mode": "lr", "drafter": "draft", "schedule": "depth"}
    for name, default in {**models, **modes, "depth": 4, "width": 1, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = vars(parser.parse_args())
    try:
        require_readable(options["model"], options["question"])
        answer = page_engine.run(Reasoner(*map(options.pop, models)), **options)
    except LRError as error:
        parser.exit(2, f"{error}\n")
    for step in answer:
        if step.rejected:
            print(f"{'rejected':>10}  {step.rejected.strip()}")  # noqa: T201
        print(f"{step.origin.value:>10}  {step.text.strip()}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
