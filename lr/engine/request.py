"""One question that is being answered: its scheduler, its branches, the steps so far.

Every node of the scheduler's tree has a branch on the target's side. It ends in the node's prefix
and, once the target has written its step there, in that step; all of it is in the cache but the
last token. The draft keeps a branch per node as well, which ends in the prefix. So
whatever is decided, the new root has its branches already: no model runs and no block is copied.

Example: root R, draft step a leads to node A, b from there to B. The target wrote s after R, and a
is rejected. R's target branch holds "... s", all but its last token cached: it is the new root's.
R's draft branch gets s as tokens to be computed. A and B are closed.

A request moves branches and keeps the books; when models run is up to `loop.py`. All that it knows
of the draft is a `DraftSide` (`drafts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lr.engine.drafts import Ahead, DraftSide, Streams, Written
from lr.errors import SettingError
from lr.kvcache.branch import Branch
from lr.rng import Stream, uniform
from lr.spec import protocol as messages
from lr.spec.drafters import StepDrafter
from lr.spec.protocol import NodeId, Place, Schedule, Wait
from lr.spec.runner import read_up_to
from lr.spec.scheduler import LookaheadScheduler
from lr.spec.variant import Controller, Correction, StepStats, Variant
from lr.spec.verifiers.base import Pair
from lr.spec.write import StepJob, StepWriter
from lr.trace import Stats, StepWritten, Trace, stats_of
from lr.types import EmittedStep, Origin, Role, Step, Verdict


@dataclass
class _Place:
    """A node: the tokens of its prefix; the target's branch, once it is needed; the draft step that
    leads there, with its log-probabilities; the pairs of its children that were judged.
    """

    tokens: tuple[int, ...]
    target: Branch | None = None
    step: Step | None = None
    logprobs: tuple[float, ...] | None = None
    follow: bool | None = None  # whether drafts may follow, once that was asked
    judged: dict[NodeId, Pair] = field(default_factory=dict)


@dataclass(eq=False)
class Request:
    """One question. `emitted`: its steps so far. `asked`: pairs that wait for the verifier, by the
    node that the draft step leads to. `jobs`: the steps that the target is writing.

    `drafts` is None where nothing looks ahead (plain decoding: a scheduler of depth 0). Of the
    `variant`, `may_follow` says whether drafts may follow a draft step, and the `corrector` how the
    target writes after a rejection. `controller` chooses the depth after every step. `proposals`:
    draft steps that no model writes.
    """

    prompt: Sequence[int]
    scheduler: LookaheadScheduler
    target: StepWriter
    drafts: DraftSide | None
    streams: Streams
    trace: Trace
    variant: Variant = field(default_factory=Variant)
    controller: Controller | None = None
    proposals: Callable[[Sequence[int], int, int], list[Step | None]] | None = None
    emitted: list[EmittedStep] = field(default_factory=list)
    asked: dict[NodeId, Pair] = field(default_factory=dict)
    jobs: dict[NodeId, StepJob] = field(default_factory=dict)
    _drafting: set[NodeId] = field(default_factory=set)
    # not told to the scheduler yet; None: the controller wants no such alternative
    _proposed: dict[NodeId, Step | None] = field(default_factory=dict)
    _places: dict[NodeId, _Place] = field(default_factory=dict)
    _widths: dict[int, int | None] = field(default_factory=dict)  # by the index of the new root
    _entropies: dict[tuple[Role, NodeId], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.scheduler.config
        self.most, self.stats, self.chooser = config.depth, Stats(), config.chooser
        self.correction: Correction | None = None
        self.guesses: int | None = None
        self.trace.news = None if self.controller is None else []
        speculation = self.target.config.speculation
        offered = None if speculation is None else speculation.drafter
        self.step_drafter = offered if isinstance(offered, StepDrafter) else None
        follows = None if self.variant.may_follow is None else self._follows
        self.scheduler.config = replace(config, chooser=self, may_follow=follows)

    @property
    def done(self) -> bool:
        return self.scheduler.done

    def start(self) -> None:
        """Open the prompt on both sides and carry out the first commands."""
        root, config = self.scheduler.root.id, self.scheduler.config
        if self.drafts is not None:
            # A worker may write steps before they are asked for, if it is to write them all. Not
            # for a detailed trace, which shows steps that were asked for.
            plain = self.proposals is None and self.variant.may_follow is None and config.width == 1
            early = plain and not self.trace.detailed
            ahead = Ahead(self.streams, config.limits) if early else None
            self.drafts.open(root, self.prompt, ahead)
        self._places[root] = _Place(tuple(self.prompt))
        self._give(root, self.target.runner.open(self.prompt))
        self._carry_out(self.scheduler.start())

    def take(self) -> bool:
        """Hand finished steps to the scheduler, which ignores those it has cancelled meanwhile.
        Whether there were any.
        """
        drafts = [] if self.drafts is None else self.drafts.take()
        if self._proposed:
            drafts = [Written(node, step, ()) for node, step in self._proposed.items()] + drafts
            self._proposed.clear()
        written = [node for node, job in self.jobs.items() if job.finish is not None]
        for node, step, logprobs, entropy in drafts:
            if entropy is not None:
                self._entropies[Role.DRAFT, node] = entropy
            if step is not None and node in self._drafting:
                self._drafting.discard(node)
                self._places[node].tokens += step.tokens
                self._places[node].step, self._places[node].logprobs = step, logprobs
                self._offer(node)
            self.tell(messages.Drafted(node, step))
        for node in written:
            # A step that was finished with it may have cancelled it.
            if node in self.jobs and (self.correction is None or self._keeps(self.jobs[node])):
                job = self.jobs.pop(node)
                if job.entropy is not None:
                    self._entropies[Role.TARGET, node] = job.entropy
                self.tell(messages.Targeted(node, job.step))
        return bool(drafts or written)

    def tell(self, event: messages.Event) -> None:
        """Hand an event to the scheduler and carry out what follows."""
        if self.trace.detailed:
            self.trace.record(event)
        self._carry_out(self.scheduler.handle(event))

    def judged(self, node: NodeId, verdict: Verdict | None) -> None:
        """Take the verdict on a pair, unless an earlier one has cancelled it."""
        pair = self.asked.pop(node, None)
        if pair is not None:
            self._places[self._parent(node)].judged[node] = pair
            self.tell(messages.Judged(node, verdict))

    def choose(self, place: Place) -> int | Literal[Wait.WAIT] | None:
        """The chooser's choice; it is shown what the verifier saw."""
        judged = self._places[place.node].judged
        pairs = tuple(map(judged.get, place.children))
        return self.chooser.choose(replace(place, pairs=pairs, note=self.trace.at(place.node)))

    def fork_before(self, node: NodeId) -> Branch:
        """A fork of the target's branch where the draft step that leads to `node` begins; the last
        token before it is still to be computed. Raises what `ModelRunner.forward` raises.
        """
        parent = self._parent(node)
        prefix = self._places[parent].tokens
        branch = self._fork(parent, len(prefix) - 1)
        branch.append(prefix[-1])
        return branch

    def take_reading(self, node: NodeId, branch: Branch) -> None:
        """Keep `branch`, which has read the draft step, as the node's, unless that has one."""
        if self._places[node].target is None:
            self._give(node, branch)
        else:
            self.target.runner.close(branch)

    def close(self) -> None:
        """Give everything back, in whatever state the request is."""
        for job in self.jobs.values():
            self.target.cancel(job)
        self.jobs.clear()
        self.asked.clear()
        self._drafting.clear()
        self._proposed.clear()
        for place in self._places.values():
            if place.target is not None:
                self.target.close(place.target)
        self._places.clear()
        if self.drafts is not None:
            self.drafts.end()

    def _parent(self, node: NodeId) -> NodeId:
        """The node where the draft step that leads to `node` begins."""
        return node.parent(self.scheduler.config.width)

    def _carry_out(self, commands: Sequence[messages.Command]) -> None:
        for command in commands:
            if self.trace.detailed or isinstance(command, messages.Emit):
                self.trace.record(command)
            match command:
                case messages.Draft():
                    self._begin_drafts(command)
                case messages.Target(node, limit):
                    self._begin_target(node, limit)
                case messages.Judge(node, parent, draft, target):
                    prefix, logprobs = self._places[parent].tokens, self._places[node].logprobs
                    stream = self.streams.target.fold_in(parent.index, "verdict", node.number)
                    pair = Pair(prefix, draft, target, draft_sampling=logprobs, stream=stream)
                    self.asked[node] = replace(pair, note=self.trace.at(node))
                case messages.Cancel((messages.Kind.DRAFT, node)):
                    self._drafting.discard(node)
                    assert self.drafts is not None
                    if self._proposed.pop(node, None) is None:
                        self.drafts.cancel(node)
                case messages.Cancel((messages.Kind.TARGET, node)):
                    self.target.cancel(self.jobs.pop(node))
                case messages.Cancel((_, node)):
                    self.asked.pop(node, None)
                case messages.Emit(emitted, _, node, root):
                    self.emitted.append(emitted)
                    if root is not None:
                        self._move_root(node, root)
                    if self.controller is not None:
                        self._ask(self.controller, command)
                case messages.Release(node):
                    self._release(node)
        if self.drafts is not None:
            self.drafts.flush()

    def _begin_drafts(self, command: messages.Draft) -> None:
        """Proposed steps are there at once, on branches of the draft; it writes the others."""
        parent, limit, tokens = command.node, command.limit, self._places[command.node].tokens
        assert self.drafts is not None
        proposed: list[Step | None] = []
        if self.proposals is not None:
            proposed = self.proposals(tokens, self.scheduler.config.width, limit)
            lengths = [None if step is None else len(step.tokens) for step in proposed]
            self.trace.tell("proposer", parent, {"tokens": lengths})
        sources: dict[NodeId, Stream | Step] = {}
        # the controller's last answer that came before this node could begin, whoever is faster
        width = self._widths.get(max(parent.stem, parent.index - self.most + 1))
        self._proposed |= dict.fromkeys(command.children[width:] if width else ())
        for sibling, child in enumerate(command.children[:width]):
            self._places[child] = _Place(tokens)
            self._drafting.add(child)
            step = proposed[sibling] if sibling < len(proposed) else None
            sources[child] = self.streams.of_draft(parent.index, sibling) if step is None else step
        self.drafts.draft(parent, limit, sources)
        for child, source in sources.items():
            if isinstance(source, Step):
                self.trace.record(StepWritten(Role.DRAFT, parent.index, source, child))
                self._proposed[child] = source

    def _begin_target(self, node: NodeId, limit: int) -> None:
        branch, stream = self._target_branch(node), self.streams.target.fold_in(node.index)
        job = StepJob(branch, node.index, limit, stream, self.trace, node, guesses=self.guesses)
        root, self.correction = self.scheduler.root, None
        replaces = root.id == node and any(child.verdict for child in root.children)
        if self.variant.corrector is not None and replaces:
            rejected = tuple(self._places[node].judged.values())
            prefix, sampling = self._places[node].tokens, self.target.config.sampling
            self.correction = Correction(prefix, rejected, sampling, note=self.trace.at(node))
            self._correct(job)
        else:
            self.jobs[node] = job
            self.target.begin([job])
        if self.step_drafter is not None:
            for other in self._places:
                if self._parent(other) == node and other not in self._drafting:
                    self._offer(other)

    def _correct(self, job: StepJob) -> None:
        """Begin to write a step in the place of rejected ones, as the corrector wants it."""
        corrector, correction = self.variant.corrector, self.correction
        assert corrector is not None and correction is not None and job.node is not None
        begun = tuple(corrector.begin(correction))
        whole = [pair.draft.tokens[: len(begun)] for pair in correction.rejected]
        if begun and (begun not in whole or len(begun) >= job.limit):
            raise SettingError(
                f"the corrector began with the tokens {begun}; expected less than a step of "
                f"{job.limit} tokens, and the beginning of one of the rejected draft steps."
            )
        job.branch.extend(begun)
        job.tokens += begun
        self.jobs[job.node] = job
        self.target.begin([job])

    def _keeps(self, job: StepJob) -> bool:
        """Whether the corrector keeps a step; else the target is already writing another one."""
        corrector, correction = self.variant.corrector, self.correction
        assert corrector is not None and correction is not None
        number = uniform(job.stream.fold_in("keep").key(correction.attempt))
        drawn = replace(correction, logprobs=tuple(job.logprobs))
        if corrector.keep(drawn, job.step, number):
            self.correction = None
            return True
        correction.note("corrector", keeps=False, attempt=correction.attempt, number=number)
        self.correction = replace(correction, attempt=correction.attempt + 1)
        prefix = correction.prefix
        self.target.runner.rewind(job.branch, len(prefix) - 1)
        job.branch.append(prefix[-1])
        stream = self.streams.target.fold_in(job.index, "correction", correction.attempt + 1)
        job = replace(job, stream=stream, tokens=[], logprobs=[], entropies=[], finish=None)
        self._correct(job)
        return False

    def _follows(self, node: NodeId) -> bool:
        """Whether drafts may follow the draft step that leads to a node; asked once for each."""
        place = self._places[node]
        if place.follow is None:
            may_follow = self.variant.may_follow
            assert may_follow is not None and place.step is not None
            place.follow = may_follow(node, place.step, place.logprobs or ())
            self.trace.tell("may_follow", node, {"follows": place.follow})
        return place.follow

    def _offer(self, node: NodeId) -> None:
        """Show the target how the draft wrote the step to `node` (first alternatives only)."""
        if self.step_drafter is None or node.number % self.scheduler.config.width:
            return
        rival = self._places[self._parent(node)]
        if rival.target is not None:
            start = len(rival.tokens)
            self.step_drafter.offer(rival.target, start, self._places[node].tokens[start:])

    def _target_branch(self, node: NodeId) -> Branch:
        """The target's branch of a node: a fork of the parent's with the draft step pending."""
        place = self._places[node]
        if place.target is None:
            parent = self._parent(node)
            length = len(self._places[parent].tokens)
            branch = self._fork(parent, length)
            branch.extend(place.tokens[length:])
            return self._give(node, branch)
        return place.target

    def _fork(self, node: NodeId, length: int) -> Branch:
        """A fork of the target's branch of a node, cut back to `length` tokens. What the branch has
        not computed of the node's prefix it computes first, the last token excepted, so that forks
        share it instead of repeating it: in the target's next pass, if a row is being written on
        it. Example: two draft steps arrive together. The row after the first begins at once, with
        all the others, and the row after the second one pass later.
        """
        origin, known = self._target_branch(node), len(self._places[node].tokens) - 1
        if node in self.jobs and origin.num_computed_tokens < known:
            self.target.poll()
        read_up_to(self.target.runner, origin, known)
        branch = self.target.runner.fork(origin)
        self.target.runner.rewind(branch, length)
        return branch

    def _give(self, node: NodeId, branch: Branch) -> Branch:
        """`branch` is the node's on the target's side."""
        self._places[node].target = branch
        if self.trace.detailed:
            self.target.runner.tag(branch, node)
        return branch

    def _move_root(self, node: NodeId, root: NodeId) -> None:
        """The new root gets its branches: after an accepted draft step the node's own, after a step
        of the target the old root's, with that step.
        """
        if node == root:
            self._target_branch(node)  # made now, because its parent is about to be closed
            return
        place = self._places.pop(node)
        assert place.target is not None
        step = tuple(place.target.tokens[len(place.tokens) :])
        if self.drafts is not None:
            self.drafts.follow(node, root, step)
        place.tokens += step
        place.judged = {}
        self._places[root] = place
        self._give(root, place.target)

    def _ask(self, controller: Controller, emit: messages.Emit) -> None:
        """The controller is told what is known as of this step, whatever else is decided by now."""
        news, self.trace.news = self.trace.news or [], []
        last, new = self.stats.seconds, stats_of(news)
        self.stats = replace(self.stats + new, seconds=max(last, new.seconds))
        config, kept = self.scheduler.config, emit.emitted.origin is Origin.ACCEPTED
        place = emit.node.parent(config.width) if kept else emit.node
        draft = self._entropies.get((Role.DRAFT, place.child(0, config.width)))
        target = self._entropies.get((Role.TARGET, place))
        told = StepStats(**vars(self.stats), draft_entropy=draft, target_entropy=target)
        least = 1 if config.schedule is Schedule.PAPER else 0
        depth = max(least, min(controller.depth(told), self.most))
        self.guesses, width = controller.tokens(told), controller.width(told)
        self._widths[emit.emitted.index + 1] = width
        chosen: dict[str, object] = {"depth": depth, "tokens": self.guesses, "width": width}
        self.trace.tell("controller", self.scheduler.root.id, chosen)
        self.scheduler.set_depth(depth)

    def _release(self, node: NodeId) -> None:
        place = self._places.pop(node, None)
        if place is not None:
            if self.drafts is not None:
                self.drafts.close(node)
            if place.target is not None:
                self.target.close(place.target)
