"""An answer: its question, its scheduler, its two sides, its steps so far.

    answer = reasoner.run(question)
    for step in answer:               # each step, as soon as it is decided
        print(step.text, end="")
    answer.result                     # the steps, the trace, the statistics

The scheduler decides: events in, commands out. The answer carries out its commands on
the two sides and reports what they have written. It runs no model: the engine's loop
(`engine.py`) does, for one answer or many, and the answer remembers. Read next:
`side.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from lr.engine.question import Question
from lr.engine.side import TargetSide
from lr.engine.worker import DraftPart
from lr.result import AnswerStep, Result, whole_characters
from lr.spec import protocol as messages
from lr.spec.checks import check_number
from lr.spec.protocol import NodeId, WorkKind
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.variant import Controller, Place
from lr.spec.verifiers.base import Pair
from lr.trace import Progress, Stats, Trace, stats_of
from lr.types import EmittedStep, Role, Verdict, require

Steps: TypeAlias = "Iterator[tuple[Answer, AnswerStep]]"
"""Each step, once it is decided, with its answer."""


class Answer:
    """The answer to a question, so far. Iterate to get each step once it is decided, or
    call `finish`; both extend `steps` and `trace`. `stopped`: set it to end the answer
    after the steps so far.

    `served`: the loop that answers it alone, not begun. `pairs`: draft steps that wait
    for the verifier, by the node that they lead to; `places`: those that wait for the
    variant's step source, likewise. `emitted`: the scheduler's steps; `steps` are those
    of them that were handed over, with their text.
    """

    def __init__(self, question: Question, *, detailed: bool = False) -> None:
        self.question = question
        self.trace = Trace(detailed=detailed)
        self.steps: list[AnswerStep] = []
        self.stopped = False
        self.served: Steps | None = None
        self._held = b""  # the beginning of a character that is not complete yet

        self.target_side: TargetSide  # and `draft_side`: set by `begin`
        self.draft_side: DraftPart | None = None
        self.pairs: dict[NodeId, Pair] = {}  # that wait for a verdict
        self.places: dict[NodeId, Place] = {}  # where a step source is to write
        self.emitted: list[EmittedStep] = []
        self.scheduler = LookaheadScheduler(question.scheduler_config())
        self.controller: Controller | None = question.variant.make("controller")
        self._stats = Stats()  # of the first `_num_counted` events, for the controller
        self._num_counted = 0

    def __getstate__(self) -> dict[str, Any]:
        expected = "answer.result, which is data; a loop cannot be copied"
        require(self.served is None, "what to copy or pickle", "an answer", expected)
        return self.__dict__

    def __iter__(self) -> Iterator[AnswerStep]:
        for _, step in self.served or ():  # the engine's loop runs on meanwhile
            yield step

    def finish(self) -> Result:
        """Answer to the end. Calling it again returns the same result."""
        for _ in self:
            pass
        return self.result

    @property
    def done(self) -> bool:
        """Whether the answer is complete and all its steps were handed over."""
        return self.scheduler.done and len(self.steps) == len(self.emitted)

    @property
    def result(self) -> Result:
        """The result so far."""
        return Result(
            question=self.question.text,
            mode=self.question.mode,
            prompt=self.question.prompt,
            steps=tuple(self.steps),
            trace=self.trace,
        )

    def hand_over(self, emitted: EmittedStep, *, last: bool) -> AnswerStep:
        """Add an emitted step to the answer. Its text are the characters that its bytes
        complete; the `last` step gets what is left."""
        token_bytes = self.question.codec.token_bytes
        # A token may end inside a character; its beginning is held for the next step.
        written = b"".join(map(token_bytes, emitted.step.tokens))
        rejected = None
        if emitted.rejected is not None:
            data = b"".join(map(token_bytes, emitted.rejected.tokens))
            rejected, _ = whole_characters(self._held + data, last=True)
        text, self._held = whole_characters(self._held + written, last=last)
        step = AnswerStep(
            index=emitted.index,
            text=text,
            tokens=emitted.step.tokens,
            origin=emitted.origin,
            finish=emitted.step.finish,
            verdict=emitted.verdict,
            rejected=rejected,
        )
        self.steps.append(step)
        return step

    # Carrying out the scheduler's commands

    def begin(self, target: TargetSide, draft: DraftPart | None) -> None:
        """Carry out the first commands."""
        self.target_side = target
        self.draft_side = draft
        self._carry_out(self.scheduler.start())

    def report_steps(self) -> bool:
        """Report finished steps to the scheduler, which ignores cancelled ones. Whether
        there were any."""
        drafted = [] if self.draft_side is None else self.draft_side.collect()
        for written in drafted:
            self.target_side.add_draft(written)
            self._report(messages.Drafted(written.node, written.step))
        targeted = self.target_side.collect()
        for written in targeted:
            assert written.step is not None, "only a draft step is given up"
            self._report(messages.Targeted(written.node, written.step))
        return bool(drafted or targeted)

    def report_verdict(self, node: NodeId, verdict: Verdict) -> None:
        """Report the verdict on a pair, unless an earlier verdict has cancelled it."""
        if self.pairs.pop(node, None) is not None:
            self._report(messages.Judged(node, verdict))

    def end(self) -> None:
        """Stop all work and close all branches, in any state of the answer."""
        self.pairs.clear()
        self.target_side.end()
        if self.draft_side is not None:
            self.draft_side.end()
        self.trace.events.sort(key=itemgetter(0))  # a worker's events came late

    def _report(self, event: messages.Event) -> None:
        """Report an event to the scheduler and carry out its commands."""
        if self.trace.detailed:
            self.trace.record(event)
        self._carry_out(self.scheduler.handle(event))

    def _carry_out(self, commands: Sequence[messages.Command]) -> None:
        for command in commands:
            if self.trace.detailed or isinstance(command, messages.Emit):
                self.trace.record(command)
            if self.draft_side is not None:
                self.draft_side.carry_out(command)
            self.target_side.carry_out(command)
            match command:
                case messages.Draft():
                    self._add_places(command)
                case messages.Judge():
                    self.pairs[command.node] = self._pair(command)
                case messages.Cancel((WorkKind.JUDGE, node)):
                    self.pairs.pop(node, None)
                case messages.Emit():
                    self.emitted.append(command.emitted)
                    if self.controller is not None:
                        self._steer(self.controller)  # the counts include this step
                case messages.Release(node):
                    self.places.pop(node, None)

    def _add_places(self, draft: messages.Draft) -> None:
        """Let the variant's step source, if any, write these steps."""
        source = self.question.variant.step_source
        if source is None or not source.offers_steps:
            return
        node = draft.node
        stream = self.question.role_stream(Role.DRAFT)
        for sibling, child in enumerate(draft.children):
            self.places[child] = Place(
                self.target_side.nodes[node].tokens,
                len(self.question.prompt),
                sibling,
                stream.fold_in("source", node.index, sibling),
            )

    def _pair(self, judge: messages.Judge) -> Pair:
        """What the verifier is to see of a draft step."""
        parent = self.target_side.nodes[judge.parent]
        drafted = self.target_side.nodes[judge.node].drafted
        assert drafted is not None, "a pair has a draft step"
        stream = self.target_side.stream.fold_in(judge.parent.index)
        return Pair(
            prefix=parent.tokens,
            draft_step=judge.draft,
            own_step=judge.target,
            draft_logprobs=drafted.logprobs,
            own_logprobs=None if parent.targeted is None else parent.targeted.logprobs,
            # a stream of its own: no token is drawn from it
            stream=stream.fold_in("verdict", judge.node.number),
            index=judge.parent.index,
            prompt=len(self.question.prompt),
        )

    def _steer(self, controller: Controller) -> None:
        """Ask the variant's controller, with the counts up to the last emitted step."""
        news = self.trace.events[self._num_counted :]  # since the last decision
        self._num_counted += len(news)
        self._stats += stats_of(news)
        progress = Progress.of(self._stats)  # counts, no times
        depth = controller.depth(progress)
        check_number("controller", controller.depth, depth, 0)
        tokens = controller.tokens(progress)
        if tokens is not None:
            check_number("controller", controller.tokens, tokens, 0)
        self.target_side.max_draft_tokens = tokens
        options = self.question.options
        shallowest = int(options.schedule == "paper")  # it needs a pair in flight
        self.scheduler.set_depth(max(shallowest, min(depth, options.depth)))
