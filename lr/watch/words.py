"""A trace in words, for the terminal and for the player: every event as one sentence,
the settings and the statistics on one line each.

    say(record)       # 'the draft wrote "So 4 + 3 = 7." (step 2, to node 0:3)'

Knows no state and no terminal. Read next: `view.py`."""

from typing import NamedTuple

from lr.engine import recorder as cache
from lr.spec.protocol import (
    Cancel,
    Draft,
    Drafted,
    Emit,
    Judge,
    Judged,
    NodeId,
    Release,
    Target,
    Targeted,
)
from lr.tiny.oracle import differing
from lr.trace import (
    Ended,
    ForwardPass,
    SourceCall,
    Stats,
    StepWritten,
    TokenRound,
    TokenWritten,
    VerifierCall,
)
from lr.types import Finish, Origin, Step, Verdict
from lr.watch.trace.file import Header, Record


class Joins(NamedTuple):
    """How to show where a step of the answer came from: its sign, the role that gives
    the colour, sign and colour in a terminal, and a sentence."""

    mark: str
    role: str
    typed: str
    style: str
    says: str


ORIGINS = {
    "accepted": Joins("✓", "accepted", "✓", "green", "the draft's step is accepted"),
    "correction": Joins(
        "✗", "target", "✗", "yellow", "the target's step replaces the draft's"
    ),
    "bonus": Joins(
        "+", "bonus", "+", "cyan", "the target's step after a fully accepted cycle"
    ),
    "target": Joins(
        "•", "target", "·", "default", "the target's step, there being no draft step"
    ),
}
MODE_WORDS = {
    "ar": "Plain decoding",
    "sd": "Token-level speculation",
    "lr": "Lookahead Reasoning",
    "lr+sd": "Lookahead Reasoning with token-level speculation",
}


def quoted(text: str) -> str:
    """Words in quotes, with single spaces."""
    return f'"{" ".join(text.split())}"'


def visible(piece: str) -> str:
    """A token's text with visible line ends: a blank line is \\n\\n."""
    return (
        piece.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        or "(no text)"
    )


def say(record: Record) -> str:
    """One event in words."""

    def words(step: Step) -> str:
        cut = " (cut)" if step.finish is Finish.LENGTH else ""  # by the limit of tokens
        return quoted(record.text_of(step.tokens)) + cut

    match record.event:
        case Draft(node, children):
            names = ", ".join(map(str, children))
            count = len(children)
            steps = "a step" if count == 1 else f"{count} alternatives"  # width 1
            return f"the draft begins {steps} after {node} (to {names})"
        case Target(node):
            return f"the target begins its own step after {node}"
        case Judge(node, _, draft, target):
            # judged alone
            rival = "" if target is None else f" against {words(target)}"
            return (
                f"the verifier is asked about {_draft_to(node)}: {words(draft)}{rival}"
            )
        case Cancel((kind, node)):
            return f"cancelled: {kind.value} {node}"
        case Release(node):
            return f"{node} leaves the tree"
        case Emit(emitted, _, _, root):
            origin = ORIGINS[emitted.origin.value].says
            end = "" if root is None else f"; root {root}"  # the answer ends
            step = words(emitted.step)
            return f"step {emitted.index} of the answer: {origin}: {step}{end}"
        case Drafted(node, None):
            return f"there will be no draft step to {node}"
        case Drafted(node, Step() as step):
            return f"the draft wrote {words(step)} ({_draft_to(node)})"
        case Targeted(node, step):
            return f"the target wrote {words(step)} (its own step after {node})"
        case Judged(node, Verdict(aligned, why)):
            verdict = "aligned" if aligned else "not aligned"
            return f"verdict on {_draft_to(node)}: {verdict} ({why})"
        case ForwardPass(role, branches, tokens):
            size = f"{counted(branches, 'branch', 'es')}, {counted(tokens, 'token')}"
            return f"one forward of the {role.value}: {size}"
        case TokenWritten(role, _, index, _, token, p):
            piece = visible(record.text_of([token]))
            return f'the {role.value} drew "{piece}" for step {index} (probability {p:.3f})'
        case TokenRound() as turn:
            at = "" if turn.node is None else f" for {turn.node}"  # in plain decoding
            stay = f"{turn.accepted} of {turn.proposed} draft tokens stay"
            return f"the {turn.role.value}{at}: {stay}, {turn.emitted} are new"
        case StepWritten(role, index, step):
            return f"the {role.value} finished step {index}: {words(step)}"
        case VerifierCall(pairs):
            return f"the verifier answered about {counted(pairs, 'pair')}"
        case SourceCall():
            return "the step source was asked for a step"
        case Ended(done, why):
            return "the end of the answer" if done else f"the run ended early: {why}"
        case cache.CacheEvent() as event:
            return f"{event.cache} cache: {_change_of(event)}"
    raise AssertionError(record.kind)


def _draft_to(node: NodeId) -> str:
    """The draft step that leads to a node; the node's own steps come after it."""
    return f"step {node.index - 1}, to node {node}"


def why_rejected(verdict: Verdict, draft: str, target: str) -> str:
    """The verifier's reason; in the tiny language also how the meanings differ."""
    difference = differing(draft, target)
    why = verdict.why
    return why if difference in why else f"{why}; {difference}"


def _change_of(event: cache.CacheEvent) -> str:
    """What happens to the branches of a cache."""
    match event:
        case cache.BranchesGrew(_, rows, copies, fresh):
            changes = [
                f"branch {branch} leaves shared block {old} for its copy {new}"
                for branch, old, new in copies
            ]
            changes += [f"block {block} to branch {branch}" for branch, block in fresh]
            end = f" ({'; '.join(changes)})" if changes else ""
            return f"one forward for {counted(len(rows), 'branch', 'es')}{end}"
        case cache.BranchForked(_, branch, source):
            return f"branch {branch} is forked from {source}; all blocks are shared"
        case cache.BranchCut(_, branch, length):
            return f"branch {branch} is cut back to {length} tokens"
        case cache.BranchHolds(_, branch, node):
            return f"branch {branch} belongs to {node}"
        case cache.BranchClosed(_, branch):
            return f"branch {branch} is closed"
    raise AssertionError(event)


def is_rejection(record: Record) -> bool:
    """Whether a verdict rejects a draft step here."""
    match record.event:
        case Judged(_, Verdict(aligned=False)):
            return True
    return False


def is_emitted(record: Record, origin: Origin) -> bool:
    """Whether a step of this origin joins the answer here."""
    event = record.event
    return isinstance(event, Emit) and event.emitted.origin is origin


def title_of(header: Header) -> str:
    """What was run, in words."""
    driver = ", scripted" if header.driver == "scripted" else ""  # no model ran
    return MODE_WORDS.get(header.mode, header.mode) + driver


def setting_of(header: Header) -> str:
    """Models and settings on one line."""
    option = header.options.get  # None: older traces lack it
    facts: dict[str, object] = {**header.models, "driver": header.driver}
    if header.mode in ("lr", "lr+sd"):
        facts |= {"schedule": header.schedule, "depth": header.depth}
        facts |= {"width": header.width, "verifier": header.verifier}
    if header.mode in ("sd", "lr+sd"):
        facts |= {"draft tokens a round": option("num_speculative_tokens")}
        facts |= {"drafter": option("drafter"), "rule": option("acceptance")}
    # What a variant replaced was not used.
    facts |= dict.fromkeys(header.replaced, "of the variant")
    facts["variant"] = header.variant
    words = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return " · ".join(words)


def summary(stats: Stats, unit: str = "second") -> str:
    """One line of statistics."""
    time = (
        f"{stats.seconds:.2f} s" if unit == "second" else f"{stats.seconds:g} {unit}s"
    )
    parts = [f"{stats.tokens} tokens", time]
    if stats.target_passes and stats.tokens_per_second:  # a script has no passes
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
        parts.append(f"{stats.target_passes} target passes")
    if stats.step_acceptance is not None:  # None: nothing was judged
        counts = f"{stats.accepted} of {stats.judged}"
        parts.append(f"step acceptance {stats.step_acceptance:.2f} ({counts})")
    if stats.token_acceptance is not None:  # None: no token was drafted
        parts.append(f"token acceptance {stats.token_acceptance:.2f}")
    if stats.verifier_passes:
        parts.append(f"{stats.verifier_passes} verifier passes")
    if stats.unjudged:
        parts.append(f"{stats.unjudged} draft steps not judged")
    return ", ".join(parts)


def counted(number: int, word: str, plural: str = "s") -> str:
    """A number and its word: 1 pass, 2 passes."""
    return f"{number} {word}{plural if number != 1 else ''}"
