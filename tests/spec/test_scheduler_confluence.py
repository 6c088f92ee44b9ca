"""Whatever happens first, the same comes out: random scripts, completed in random
orders, against a straight-line oracle; a clerk checks the books.

The page `lr/lookahead.py` is the oracle for all that happens on models
(`tests/test_lookahead.py`). The one here is for what it leaves out: drafts that fail,
and verdicts without the target's step.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_root import cases

from lr.spec.protocol import (
    Cancel,
    Draft,
    Drafted,
    Emit,
    Judge,
    Judged,
    Limits,
    NodeId,
    Release,
    Schedule,
    SchedulerConfig,
    Target,
    Targeted,
    Work,
    WorkKind,
)
from lr.spec.verifiers.base import verdict_by_form
from lr.types import EmittedStep, Finish, Origin, Step, Verdict
from lr.watch.scripted import (
    ScriptedRun,
    continued,
    cut,
    newest,
    oldest,
    shuffled,
)


@dataclass(frozen=True)
class RandomScript:
    """Random steps and verdicts, each a function of its own content, as the keyed draws
    of real models are.
    """

    seed: int
    aligned: float = 0.6
    eos: float = 0.1
    cut: float = 0.1
    fails: float = 0.05
    keeps: float = 0.0

    def _chance(self, *key):
        return random.Random(repr((self.seed, *key)))

    def _step(self, *key):
        chance = self._chance(*key)
        length = chance.choice([1, 1, 2, 3, 5])
        tokens = tuple(chance.randrange(50) for _ in range(length))
        kinds = (Finish.EOS, Finish.LENGTH, Finish.BOUNDARY)
        weights = (self.eos, self.cut, 1 - self.eos - self.cut)
        return Step(tokens, *chance.choices(kinds, weights))

    def draft(self, prefix, sibling):
        fails = self._chance("fails", prefix, sibling).random() < self.fails
        return None if fails else self._step("draft", prefix, sibling)

    def target(self, prefix):
        return self._step("target", prefix)

    def judge(self, prefix, draft, target):
        chance = self._chance("judge", prefix, draft, target)
        aligned = chance.random() < self.aligned
        why = f"a coin, {chance.random():.3f}"
        if aligned or chance.random() >= self.keeps:
            return Verdict(aligned, why)
        return Verdict(False, why, keep=chance.randrange(len(draft.tokens)))


def last_aligned(drafts, verdicts):
    """The choice of a verifier that prefers later alternatives."""
    aligned = [j for j, verdict in enumerate(verdicts) if verdict.aligned]
    return max(aligned, default=None)


@dataclass
class Expected:
    """What a run must give: its steps, and the nodes whose branch was the root's, one
    after the other.
    """

    chain: list[EmittedStep] = field(default_factory=list)
    survivors: list[tuple[NodeId, NodeId]] = field(default_factory=list)


def oracle(script, config):
    """One position after the other, everything waited for: what every schedule must
    emit at any width. The page cannot stand in for it: it names no nodes, and knows
    neither drafts that do not come nor verdicts without a target step.
    """
    expected = Expected()
    limits = config.limits
    sync = config.schedule is Schedule.SYNC
    level = 0  # of the synchronous cycle
    node = after = NodeId(0, 0)
    while True:
        prefix = tuple(e.step for e in expected.chain)
        index = len(prefix)
        limit = limits.step_limit(sum(len(step.tokens) for step in prefix))
        if not limit or (prefix and prefix[-1].finish is Finish.EOS):
            return expected
        if prefix:
            accepted = expected.chain[-1].origin is Origin.ACCEPTED
            expected.survivors.append((after if accepted else node, after))
            level = level + 1 if accepted else 0
            node = after
        if sync and not config.needs_target_step and level == config.depth:
            level = 0  # no bonus waits at the end of the cycle
        at_end = sync and level == config.depth
        eligible = limits.draft_limit(0, prefix[-1] if prefix else None) > 0
        width = config.width if eligible and config.depth and not at_end else 0
        target = cut(script.target(prefix), limit)
        bonus = sync and level > 0
        emitted = EmittedStep(index, target, Origin.BONUS if bonus else Origin.TARGET)
        after = NodeId(index + 1, index + 1)
        most = 0  # tokens that a verdict keeps
        for j in range(width):
            step = script.draft(prefix, j)
            if step is None:
                continue
            draft = cut(step, limit)
            verdict = _verdict(script, config, prefix, draft, target)
            if verdict.aligned:
                emitted = EmittedStep(index, draft, Origin.ACCEPTED, verdict)
                after = node.child(j, config.width)
                if config.choose is None:
                    break
            elif emitted.origin is not Origin.ACCEPTED and verdict.keep >= most:
                most = verdict.keep  # the one that keeps most decides, or the last
                begun = draft.tokens[:most]
                own = target
                if not config.needs_target_step or target.tokens[:most] != begun:
                    own = cut(continued(target, begun), limit)
                emitted = EmittedStep(index, own, Origin.CORRECTION, verdict, draft)
        expected.chain.append(emitted)


def _verdict(script, config, prefix, draft, target):
    if not config.needs_target_step:
        return verdict_by_form(draft, draft) or script.judge(prefix, draft, None)
    return verdict_by_form(draft, target) or script.judge(prefix, draft, target)


class Clerk:
    """Checks the books of a run: what begins ends, once; no work for a node that is not
    there; never more rows than allowed.
    """

    def __init__(self, config):
        self.config = config
        self.running = set()
        # Judged without the target's step: a row of the target.
        self.alone = set()
        self.ended = set()
        self.alive = {NodeId(0, 0)}
        self.gone = set()
        self.most_rows = 0
        self.emitted = 0
        self.survivors = []

    def read(self, turn):
        """Enter one turn."""
        if turn.event is not None:
            self._end(work_of(turn.event))
        for command in turn.commands:
            self._enter(command)
        rows = [w for w in self.running if w.kind is WorkKind.TARGET or w in self.alone]
        self.most_rows = max(self.most_rows, len(rows))
        limit = self.config.max_target_rows
        assert limit is None or len(rows) <= limit

    def _enter(self, command):
        match command:
            case Draft(node, children, limit):
                assert limit > 0
                self._announce(*children)
                for child in children:
                    self._begin(Work(WorkKind.DRAFT, child), node)
            case Target(node, limit, begun):
                assert limit > len(begun)
                if begun:  # the target writes again
                    self.ended.discard(Work(WorkKind.TARGET, node))
                self._begin(Work(WorkKind.TARGET, node), node)
            case Judge(node, parent, _, target):
                self._begin(Work(WorkKind.JUDGE, node), parent)
                if target is None:
                    self.alone.add(Work(WorkKind.JUDGE, node))
            case Cancel(work):
                self._end(work)
            case Emit(emitted, _, node, root):
                assert emitted.index == self.emitted and node in self.alive
                self.emitted += 1
                if root is not None:
                    self.survivors.append((node, root))
                if root is not None and node != root:
                    self._leave(node)
                    self._announce(root)
            case Release(node):
                self._leave(node)

    def _announce(self, *nodes):
        assert not (self.alive | self.gone) & set(nodes)
        assert len(set(nodes)) == len(nodes)
        self.alive |= set(nodes)

    def _leave(self, node):
        in_flight = [work for work in self.running if work.node == node]
        assert not in_flight, "released while work for it is in flight"
        self.alive.remove(node)
        self.gone.add(node)

    def _begin(self, work, parent):
        assert work not in self.running | self.ended
        assert {work.node, parent} <= self.alive
        self.running.add(work)

    def _end(self, work):
        self.running.remove(work)
        self.ended.add(work)

    def close(self):
        """The chain has ended: nothing runs, nobody is left."""
        assert not self.running and not self.alive


def work_of(event):
    """The work that an event reports."""
    kinds = {Drafted: WorkKind.DRAFT, Targeted: WorkKind.TARGET, Judged: WorkKind.JUDGE}
    return Work(kinds[type(event)], event.node)


def run_and_check(run, stale=None):
    """Run to the end with the clerk looking on, now and then with a stale event, which
    must change nothing.
    """
    clerk = Clerk(run.scheduler.config)
    clerk.read(run.turns[0])
    cancelled = []
    while not run.done:
        turn = run.step()
        clerk.read(turn)
        cancelled += [c.work for c in turn.commands if isinstance(c, Cancel)]
        if stale is not None and cancelled and stale.random() < 0.3:
            late = cancelled.pop(stale.randrange(len(cancelled)))
            assert run.tell(run.event_of(late)).commands == ()
            run.turns.pop()
        assert len(run.turns) < 10_000, "the run does not come to an end"
    clerk.close()
    assert not run.work
    for late in cancelled:  # also after the end
        assert run.tell(run.event_of(late)).commands == ()
        run.turns.pop()
    return clerk


chances = st.sampled_from([0.0, 0.05, 0.2])
scripts = st.builds(
    RandomScript,
    seed=st.integers(0, 2**32),
    aligned=st.sampled_from([0.0, 0.4, 0.7, 0.9, 1.0]),
    eos=chances,
    cut=chances,
    fails=chances,
    keeps=st.sampled_from([0.0, 0.7]),
)
limits = st.builds(
    Limits,
    max_tokens=st.integers(1, 40),
    max_step_tokens=st.integers(1, 6),
    ignore_half_sentence=st.booleans(),
)


@st.composite
def configs(draw):
    schedule = draw(st.sampled_from(Schedule))
    width = draw(st.sampled_from([1, 1, 2, 3]))
    compares = draw(st.sampled_from([True, True, True, False]))
    return SchedulerConfig(
        limits=draw(limits),
        schedule=schedule,
        depth=draw(
            st.integers(1 if schedule is Schedule.PAPER else 0, 6 if width == 1 else 3)
        ),
        width=width,
        max_target_rows=draw(st.one_of(st.none(), st.integers(1, 6))),
        needs_target_step=compares,
        choose=draw(st.sampled_from([None, last_aligned])),
    )


@settings(max_examples=cases(200), deadline=None)
@given(script=scripts, config=configs(), seed=st.integers(0, 2**32))
def test_any_order_gives_what_the_oracle_says(script, config, seed):
    """Same steps, same origins, same verdicts, same survivors; the books are checked on
    the way, stale events thrown in.
    """
    expected = oracle(script, config)
    for order in (oldest, newest, shuffled(seed), shuffled(seed + 1)):
        run = ScriptedRun(config, script, order)
        clerk = run_and_check(run, random.Random(seed))
        assert run.emitted == expected.chain
        assert clerk.survivors == expected.survivors


@settings(max_examples=cases(100), deadline=None)
@given(script=scripts, config=configs(), seed=st.integers(0, 2**32))
def test_late_drafts_rejected_still_ends_and_keeps_the_books(script, config, seed):
    """What is emitted depends on the order now; everything else holds."""
    config = replace(
        config, schedule=Schedule.DEPTH, reject_late=True, needs_target_step=True
    )
    run_and_check(ScriptedRun(config, script, shuffled(seed)), random.Random(seed))


@settings(max_examples=cases(100), deadline=None)
@given(
    script=scripts, limits=limits, width=st.integers(1, 2), seed=st.integers(0, 2**32)
)
def test_changing_depths_change_no_step(script, limits, width, seed):
    """As a controller sets them."""
    chance = random.Random(seed)
    for schedule in (Schedule.PAPER, Schedule.DEPTH):
        config = SchedulerConfig(limits, schedule, 2, width)
        run = ScriptedRun(config, script, shuffled(seed))
        while not run.done:
            run.step()
            run.scheduler.set_depth(chance.randint(1, 4))
        assert run.emitted == oracle(script, config).chain


@pytest.mark.parametrize("schedule", Schedule)
def test_the_row_limit_is_used(schedule):
    """Never more than the limit is checked above; here, that so many do run. Depth 3,
    width 2: a tree has up to 15 nodes.
    """
    script = RandomScript(5, aligned=0.9, eos=0, cut=0, fails=0)
    for rows in (1, 2, 3, 5):
        config = SchedulerConfig(Limits(60), schedule, 3, 2, max_target_rows=rows)
        assert run_and_check(ScriptedRun(config, script, shuffled(7))).most_rows == rows


def test_cancelled_work_behind_the_root_is_forgotten():
    """Most cancelled work is never reported: a driver drops it."""
    config = SchedulerConfig(Limits(400), Schedule.DEPTH, 3, 2)
    run = ScriptedRun(config, RandomScript(1, aligned=0.5, eos=0.0), shuffled(1))
    cancelled = 0
    while not run.done:
        turn = run.step()
        cancelled += sum(isinstance(command, Cancel) for command in turn.commands)
        nodes = 1 + 2 + 4 + 8
        assert len(run.scheduler._cancelled) <= 2 * nodes
    assert cancelled > 100
