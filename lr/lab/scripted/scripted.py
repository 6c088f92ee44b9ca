"""Runs a scheduler on scripted steps and verdicts, one event at a time, in any order: for tests,
notebooks and documents.

No model and no clock: a script says what the draft, the target and the verifier would say, an order
says which piece of work in flight is completed next. Since the scheduler's output must not depend
on the order, shuffling it is the test of the scheduler, and stepping through it
(`ScriptedRun.step`) the way to watch it.

    run = ScriptedRun(config, TextScript(targets=["a.", "b$"], drafts=["A.", "C."]))
    while not run.done:
        run.step()
    print(*run.lines(quoted), sep="\n")

Scripts that are written as short texts are in `texts.py`. Read next: `docs/scheduler.md`;
`simulate.py`, where a clock decides what is completed next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from lr.lab.scripted.transcript import Turn, Words, lines_of
from lr.spec.protocol import (
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    Kind,
    NodeId,
    Release,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.types import EmittedStep, Finish, Step, Verdict

Prefix = tuple[Step, ...]
Order = Callable[[Sequence[Work]], int]
"""Of the work in flight, oldest first: which is completed next?"""


class Script(Protocol):
    """What the models say. Pure functions of what they would see; the step to be written has the
    number len(prefix).

    A step that is longer than its limit is cut by the run, as a model's would be.
    """

    def draft(self, prefix: Prefix, sibling: int) -> Step | None:
        """Alternative `sibling` of the next step; None: the drafter fails."""
        ...

    def target(self, prefix: Prefix) -> Step:
        """The target's next step."""
        ...

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict | None:
        """The verdict on a pair; on the draft step alone where `target` is None, and then None
        means unsure.
        """
        ...


def oldest(work: Sequence[Work]) -> int:
    """The order in which all work takes equally long: what was commanded first is completed
    first.
    """
    return 0


def newest(work: Sequence[Work]) -> int:
    """What was commanded last is completed first."""
    return len(work) - 1


def shuffled(seed: int) -> Order:
    """A random order, the same for the same seed."""
    chance = random.Random(seed)
    return lambda work: chance.randrange(len(work))


class ScriptedRun:
    """A scheduler with its script. `turns`: all that has happened; `emitted`: the output;
    `prefixes`: the steps before each live node.
    """

    def __init__(self, config: SchedulerConfig, script: Script, order: Order = oldest) -> None:
        self.scheduler = LookaheadScheduler(config)
        self.script = script
        self.order = order
        self.turns: list[Turn] = []
        self.emitted: list[EmittedStep] = []
        self.prefixes: dict[NodeId, Prefix] = {self.scheduler.root.id: ()}
        self._events: dict[Work, Callable[[], Event]] = {}
        self._take(None, self.scheduler.start())

    @property
    def done(self) -> bool:
        return self.scheduler.done

    @property
    def work(self) -> list[Work]:
        """What is in flight, oldest first."""
        return self.scheduler.work

    def run(self) -> list[EmittedStep]:
        """Go on to the end of the chain; returns its steps."""
        while not self.done:
            self.step()
        return self.emitted

    def step(self, work: Work | None = None) -> Turn:
        """Complete one piece of work: the one given, or the one whose turn it is by the run's
        order.
        """
        if work is None:
            pieces = self.work
            work = pieces[self.order(pieces)]
        return self.tell(self.event_of(work))

    def tell(self, event: Event) -> Turn:
        """Hand the scheduler any event, the script's or one of your own making."""
        return self._take(event, self.scheduler.handle(event))

    def event_of(self, work: Work) -> Event:
        """The event that completes a piece of work, be it still in flight or not."""
        return self._events[work]()

    def lines(self, words: Words = str) -> list[str]:
        """All that has happened, as text."""
        return lines_of(self.turns, words)

    def _take(self, event: Event | None, commands: list[Command]) -> Turn:
        if isinstance(event, Drafted) and event.step and event.node in self.prefixes:
            self.prefixes[event.node] += (event.step,)
        for command in commands:
            self._obey(command)
        self.turns.append(Turn(event, tuple(commands)))
        return self.turns[-1]

    def _obey(self, command: Command) -> None:
        match command:
            case Draft(node, children, limit):
                prefix = self.prefixes[node]
                for sibling, child in enumerate(children):
                    self.prefixes[child] = prefix
                    self._events[Work(Kind.DRAFT, child)] = partial(
                        self._draft, child, prefix, sibling, limit
                    )
            case Target(node, limit):
                self._events[Work(Kind.TARGET, node)] = partial(
                    self._target, node, self.prefixes[node], limit
                )
            case Judge(node, parent, draft, target):
                self._events[Work(Kind.JUDGE, node)] = partial(
                    self._judge, node, self.prefixes[parent], draft, target
                )
            case Emit(emitted, _, node, root):
                self.emitted.append(emitted)
                if root is not None:
                    prefix = self.prefixes.pop(node)
                    self.prefixes[root] = prefix if node == root else (*prefix, emitted.step)
            case Release(node):
                del self.prefixes[node]

    def _draft(self, node: NodeId, prefix: Prefix, sibling: int, limit: int) -> Event:
        step = self.script.draft(prefix, sibling)
        return Drafted(node, None if step is None else cut(step, limit))

    def _target(self, node: NodeId, prefix: Prefix, limit: int) -> Event:
        return Targeted(node, cut(self.script.target(prefix), limit))

    def _judge(self, node: NodeId, prefix: Prefix, draft: Step, target: Step | None) -> Event:
        verdict = self.script.judge(prefix, draft, target)
        if verdict is None and target is not None:
            verdict = Verdict(aligned=False, why="the script gives no verdict")
        return Judged(node, verdict)


def cut(step: Step, limit: int) -> Step:
    """The step as a writer would have left it that may write `limit` tokens."""
    return step if len(step.tokens) <= limit else Step(step.tokens[:limit], Finish.LENGTH)
