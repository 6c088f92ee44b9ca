"""Runs a scheduler on scripted steps and verdicts, one event at a time, in any order:
for tests, notebooks and documents.

There is no model and no clock. A script provides the steps and verdicts; an order
chooses the piece of work that completes next. Shuffled orders test the scheduler;
single steps show how it works.

    run = ScriptedRun(config, TextScript(targets=["a.", "b$"], drafts=["A.", "C."]))
    while not run.done:
        run.step()
    print(*run.lines(), sep="\n")

A `TextScript` consists of short texts, one token per character: "ab." ends at a
boundary, "ab$" ends the text, "ab" was cut. Two steps mean the same if they differ only
in case. So if the draft writes in capitals, the output shows who wrote what: "A." is
the draft's, "b." the target's. Read next: `docs/scheduler.md`; `theory/simulate.py`,
where a clock decides what completes next."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lr import __version__
from lr.spec.protocol import (
    Command,
    Draft,
    Drafted,
    Emit,
    Event,
    Judge,
    Judged,
    NodeId,
    Release,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
    WorkKind,
)
from lr.spec.scheduler import LookaheadScheduler
from lr.trace import Ended, Trace
from lr.types import EmittedStep, Finish, Step, Verdict
from lr.watch.trace.file import Header, Record, TraceFile, records_of
from lr.watch.words import say

Prefix = tuple[Step, ...]
Order = Callable[
    [Sequence[Work]], int
]  # The work in flight, oldest first: which completes next?


class Script(Protocol):
    """The models' output, as pure functions of their input. The next step has the
    number len(prefix); the run cuts a step that is longer than its limit."""

    def draft(self, prefix: Prefix, sibling: int) -> Step | None:
        """Alternative `sibling` of the next step; None: no draft is possible."""

    def target(self, prefix: Prefix) -> Step:
        """The target's next step."""

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict:
        """The verdict on a pair. `target` None: on the draft step alone."""


def oldest(work: Sequence[Work]) -> int:
    """What was commanded first completes first, as if all work took equally long."""
    return 0


def newest(work: Sequence[Work]) -> int:
    """What was commanded last completes first."""
    return len(work) - 1


def shuffled(seed: int) -> Order:
    """A random order, determined by the seed."""
    chance = random.Random(seed)
    return lambda work: chance.randrange(len(work))


@dataclass(frozen=True)
class Turn:
    """An event (None: the start) and the commands that followed."""

    event: Event | None
    commands: tuple[Command, ...]


class ScriptedRun:
    """A scheduler with a script. `prefixes`: the steps before each live node."""

    def __init__(
        self, config: SchedulerConfig, script: Script, order: Order = oldest
    ) -> None:
        self.scheduler = LookaheadScheduler(config)
        self.script = script
        self.order = order
        self.turns: list[Turn] = []
        self.emitted: list[EmittedStep] = []
        self.prefixes: dict[NodeId, Prefix] = {self.scheduler.root.id: ()}
        # what each piece of work was asked for
        self._asked: dict[Work, tuple[Prefix, Draft | Target | Judge]] = {}
        self._take(None, self.scheduler.start())  # the first turn has no event

    @property
    def done(self) -> bool:
        return self.scheduler.done

    @property
    def work(self) -> list[Work]:
        """The work in flight, oldest first."""
        return list(self.scheduler.work)

    def run(self) -> list[EmittedStep]:
        """Run to the end of the text and return its steps."""
        while not self.done:
            self.step()
        return self.emitted

    def step(self, work: Work | None = None) -> Turn:
        """Complete a piece of work: the given one, or the next in the run's order."""
        if work is None:
            pieces = self.work
            work = pieces[self.order(pieces)]
        return self.tell(self.event_of(work))

    def tell(self, event: Event) -> Turn:
        """Pass any event to the scheduler, the script's or your own."""
        return self._take(event, self.scheduler.handle(event))

    def event_of(self, work: Work) -> Event:
        """The event that completes a piece of work, in flight or not."""
        prefix, command = self._asked[work]
        match command:
            case Draft(_, children, limit):
                # the sibling's number
                step = self.script.draft(prefix, children.index(work.node))
                return Drafted(work.node, None if step is None else cut(step, limit))
            case Target(node, limit, begun):
                step = continued(self.script.target(prefix), begun)
                return Targeted(node, cut(step, limit))
            case Judge(node, _, draft, target):
                return Judged(node, self.script.judge(prefix, draft, target))

    def lines(self) -> list[str]:
        return lines_of(self.turns)

    def _take(self, event: Event | None, commands: list[Command]) -> Turn:
        if isinstance(event, Drafted) and event.step and event.node in self.prefixes:
            self.prefixes[event.node] += (event.step,)  # the node's prefix is complete
        for command in commands:
            match command:
                case Draft(node, children):
                    prefix = self.prefixes[node]
                    for child in children:
                        self.prefixes[child] = prefix
                        self._asked[Work(WorkKind.DRAFT, child)] = (prefix, command)
                case Target(node):
                    work = Work(WorkKind.TARGET, node)
                    self._asked[work] = (self.prefixes[node], command)
                case Judge(node, parent):
                    work = Work(WorkKind.JUDGE, node)
                    self._asked[work] = (self.prefixes[parent], command)
                case Emit(emitted, _, node, root):
                    self.emitted.append(emitted)
                    if root is not None:
                        prefix = self.prefixes.pop(node)
                        if node != root:
                            prefix = (*prefix, emitted.step)  # the target's step
                        self.prefixes[root] = prefix
                case Release(node):
                    del self.prefixes[node]
        self.turns.append(Turn(event, tuple(commands)))
        return self.turns[-1]


def continued(step: Step, begun: tuple[int, ...]) -> Step:
    """The step, but with these first tokens, which a verdict keeps; at least its last
    token follows."""
    rest = step.tokens[len(begun) :] or step.tokens[-1:]
    return replace(step, tokens=begun + rest)


def cut(step: Step, limit: int) -> Step:
    """The step as a writer with this limit of tokens would have written it."""
    if len(step.tokens) <= limit:
        return step
    return Step(step.tokens[:limit], Finish.LENGTH)


# Steps as short texts


@dataclass(frozen=True)
class TextScript:
    """Texts by the number of the step, independent of earlier steps. After the last one
    the target ends the text ("$"). Draft alternatives are separated by "|"; without a
    text no draft is possible.

    Example: targets ["a.", "b$"] and drafts ["A.", "C.|B$"] emit "A." and, with width
    2, "B$"; with width 1, "b$"."""

    targets: Sequence[str]
    drafts: Sequence[str] = ()

    def draft(self, prefix: Prefix, sibling: int) -> Step | None:
        if len(prefix) >= len(self.drafts):
            return None
        texts = self.drafts[len(prefix)].split("|")  # one per sibling
        text = texts[sibling] if sibling < len(texts) else ""
        return step_of(text) if text else None

    def target(self, prefix: Prefix) -> Step:
        ended = len(prefix) >= len(self.targets)
        return step_of("$" if ended else self.targets[len(prefix)])

    def judge(self, prefix: Prefix, draft: Step, target: Step | None) -> Verdict:
        rival = target or self.target(prefix)  # alone: the target's step, unseen
        aligned = text_of(draft).lower() == text_of(rival).lower()
        return Verdict(aligned, "the same" if aligned else "not the same")


def step_of(text: str) -> Step:
    """The step that a text denotes."""
    # "..." ends in ".", the last step in "$"
    finish = {".": Finish.BOUNDARY, "$": Finish.EOS}.get(text[-1:], Finish.LENGTH)
    return Step(tuple(map(ord, text)), finish)  # a token per letter


def text_of(step: Step) -> str:
    """The text of a step."""
    return "".join(map(chr, step.tokens))


def letters(token: int) -> bytes:
    """The text of a token, which is a character."""
    return chr(token).encode()


def scripted_trace(run: ScriptedRun) -> TraceFile:
    """The trace of a scripted run so far. Turn n (the start is turn 0) has the time
    n."""
    trace = Trace(clock=lambda: 0.0, detailed=True)
    for number, turn in enumerate(run.turns):
        trace.start = -float(number)
        if turn.event is not None:
            trace.record(turn.event)
        for command in turn.commands:
            trace.record(command)
    if run.done:
        trace.record(Ended(done=True))
    config = run.scheduler.config
    header = Header(
        driver="scripted",
        unit="turn",
        schedule=config.schedule.value,
        depth=config.depth,
        width=config.width,
        lr=__version__,
    )
    return TraceFile(header, records_of(trace.events, letters))


def lines_of(turns: Iterable[Turn]) -> list[str]:
    """The transcript of some turns: events at the margin, their commands indented."""
    lines = []
    for turn in turns:
        lines.append("start" if turn.event is None else _line_of(turn.event))
        lines.extend("    " + _line_of(command) for command in turn.commands)
    return lines


def _line_of(message: Event | Command) -> str:
    return say(Record(0, 0.0, message, letters))
