"""The draft's side with a `StepProposer` before the model: what it proposes is there at once, the
model writes the rest. Where the model is does not matter; it gets a branch for every node, so it
can go on after a proposed step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lr.engine.request import DraftSide, Written
from lr.rng import Stream
from lr.spec.protocol import NodeId
from lr.spec.segmenters import Segmenter
from lr.spec.variant import StepProposer
from lr.trace import StepWritten, Trace
from lr.types import Finish, Role, Step, require


@dataclass
class ProposedDrafts:
    """See `DraftSide`. `width`: alternatives per step. `segmenter` and `eos_ids` say where a
    proposed step ends; `trace` records it.
    """

    drafts: DraftSide
    proposer: StepProposer
    width: int
    segmenter: Callable[[], Segmenter]
    eos_ids: frozenset[int]
    vocab_size: int
    trace: Trace
    _tokens: dict[NodeId, tuple[int, ...]] = field(default_factory=dict)
    _made: dict[NodeId, list[Sequence[int] | None]] = field(default_factory=dict)
    _ready: dict[NodeId, Step] = field(default_factory=dict)

    def open(self, node: NodeId, tokens: Sequence[int]) -> None:
        self._tokens[node] = tuple(tokens)
        self.drafts.open(node, tokens)

    def share(self, node: NodeId) -> None:
        self.drafts.share(node)

    def draft(self, node: NodeId, parent: NodeId, limit: int, stream: Stream) -> None:
        if parent not in self._made:
            self._made[parent] = list(self.proposer.propose(self._tokens[parent], self.width))
        made, sibling = self._made[parent], node.number % self.width
        step = self._step(made[sibling], limit) if sibling < len(made) else None
        self._tokens[node] = self._tokens[parent]
        if step is None:
            return self.drafts.draft(node, parent, limit, stream)
        self.drafts.adopt(node, parent, step.tokens)
        self.trace.record(StepWritten(Role.DRAFT, parent.index, step, node))
        self._ready[node] = step

    def adopt(self, node: NodeId, parent: NodeId, tokens: Sequence[int]) -> None:
        self._tokens[node] = self._tokens[parent] + tuple(tokens)
        self.drafts.adopt(node, parent, tokens)

    def cancel(self, node: NodeId) -> None:
        if self._ready.pop(node, None) is None:
            self.drafts.cancel(node)

    def follow(self, old: NodeId, new: NodeId, tokens: Sequence[int]) -> None:
        self._tokens[new] = self._tokens.pop(old) + tuple(tokens)
        self._made.pop(old, None)
        self.drafts.follow(old, new, tokens)

    def close(self, node: NodeId) -> None:
        self._tokens.pop(node, None)
        self._made.pop(node, None)
        self.drafts.close(node)

    def flush(self) -> None:
        self.drafts.flush()

    def end(self) -> None:
        self._ready.clear()
        self.drafts.end()

    def take(self) -> list[Written]:
        ready, self._ready = self._ready, {}
        made = [Written(node, step, ()) for node, step in ready.items()] + self.drafts.take()
        for node, step, _ in made:
            if node in self._tokens:
                self._tokens[node] += step.tokens
        return made

    def _step(self, tokens: Sequence[int] | None, limit: int) -> Step | None:
        """The step that `tokens` begin with; None where they do not end one."""
        segmenter = self.segmenter()
        for length, token in enumerate(tokens or (), start=1):
            if length > limit:
                break
            expected = f"a token id from 0 to {self.vocab_size - 1}"
            require(token < self.vocab_size, "a token of the variant's proposer", token, expected)
            if token in self.eos_ids or segmenter.feed(token):
                finish = Finish.EOS if token in self.eos_ids else Finish.BOUNDARY
                return Step(tuple((tokens or ())[:length]), finish)
        return None
