"""What notebook 00 begins with: two tiny models and `next_step`. Below them the answers
to its blanks, and the checks that tell how far a reader's version is from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise

import torch

from lr import load_model
from lr.engine.runner import ModelRunner
from lr.model.codec import Codec
from lr.registry import SAMPLE_QUESTION
from lr.tiny.oracle import same_meaning

Tokens = list[int]
Same = Callable[[Tokens, Tokens], bool]
SPEED = 8  # tokens that the draft writes during one pass of the target

# In float64, so that every processor writes the same words where two nearly tie.
torch.set_num_threads(1)  # the models are tiny
target = ModelRunner(load_model("tiny-target", dtype=torch.float64), num_blocks=1024)
draft = ModelRunner(load_model("tiny-draft", dtype=torch.float64), num_blocks=1024)
codec = Codec.load("tiny-target")
prompt = codec.chat(SAMPLE_QUESTION)


def finished(tokens: Sequence[int]) -> bool:
    """Whether the answer is complete."""
    return tokens[-1] in codec.eos_ids


def ended(step: Tokens) -> bool:
    """Whether the step is complete: a blank line, or the end of the answer."""
    return finished(step) or codec.decode(step).endswith("\n\n")


def next_step(model: ModelRunner, prefixes: list[Tokens]) -> tuple[list[Tokens], int]:
    """The next step after each prefix, and how many passes all of them took together."""
    rows = [model.open(prefix) for prefix in prefixes]
    steps: list[Tokens] = [[] for _ in prefixes]
    passes = 0
    while writing := [i for i, step in enumerate(steps) if not step or not ended(step)]:
        passes += 1
        for i, logits in zip(writing, model.forward([rows[i] for i in writing])):
            steps[i].append(int(logits.argmax()))
            rows[i].extend(steps[i][-1:])
    for row in rows:
        model.close(row)
    return steps, passes


def same(first: Tokens, second: Tokens) -> bool:
    """Whether two steps mean the same, by the oracle of this small language."""
    return same_meaning(codec.decode(first), codec.decode(second))


# ---- the answers


def plain(prompt: Tokens) -> tuple[Tokens, int]:
    """Section 2."""
    chain, passes = list(prompt), 0
    while not finished(chain):
        steps, new_passes = next_step(target, [chain])
        chain += steps[0]
        passes += new_passes
    return chain, passes


def joins(drafts: list[Tokens], steps: list[Tokens], same: Same) -> list[Tokens]:
    """Section 3."""
    accepted: list[Tokens] = []
    for ours, theirs in zip(drafts, steps):
        if not same(ours, theirs):
            return [*accepted, theirs]  # the correction
        accepted.append(ours)
    return accepted + steps[len(drafts) :]  # the bonus, unless the answer has ended


def lookahead(
    prompt: Tokens, depth: int, joins: Callable = joins, same: Same = same
) -> tuple[Tokens, int, int]:
    """Section 3: Algorithm 1. Returns the answer, passes of the target, and of the
    draft."""
    chain, passes, draft_passes = list(prompt), 0, 0
    while not finished(chain):
        prefixes = [chain]
        while len(prefixes) <= depth and not finished(prefixes[-1]):
            (step,), new_passes = next_step(draft, prefixes[-1:])
            prefixes.append(prefixes[-1] + step)
            draft_passes += new_passes
        drafts = [longer[len(shorter) :] for shorter, longer in pairwise(prefixes)]
        if finished(prefixes[-1]):
            prefixes.pop()  # nothing comes after the end
        steps, new_passes = next_step(target, prefixes)
        passes += new_passes
        for step in joins(drafts, steps, same):
            chain = chain + step
    return chain, passes, draft_passes


class Writing:
    """A step in progress."""

    def __init__(self, model: ModelRunner, prefix: Tokens) -> None:
        self.model, self.row = model, model.open(prefix)
        self.step: Tokens = []
        self.done = False

    def one_token(self) -> None:
        if not self.done:
            (logits,) = self.model.forward([self.row])
            self.step.append(int(logits.argmax()))
            self.row.extend(self.step[-1:])
            self.done = ended(self.step)


class Node:
    """A prefix, and the two steps that are written after it."""

    def __init__(self, prefix: Tokens) -> None:
        self.prefix = prefix
        self.draft, self.target = Writing(draft, prefix), Writing(target, prefix)

    def close(self) -> None:
        """Give the rows' memory back."""
        for writing in (self.draft, self.target):
            writing.model.close(writing.row)


def decide(nodes: list[Node], same: Same) -> list[Node]:
    """Section 5."""
    root = nodes[0]
    if not (root.draft.done and root.target.done):
        return nodes
    if same(root.draft.step, root.target.step) and len(nodes) > 1:
        return nodes[1:]  # the window rolls on
    return [Node(root.prefix + root.target.step)]  # wrong, or the end


def rolling(
    prompt: Tokens,
    depth: int,
    speed: int = SPEED,
    decide: Callable = decide,
    same: Same = same,
) -> tuple[Tokens, int]:
    """Section 5: nobody waits; the draft writes `speed` tokens per pass of the target."""
    nodes, passes = [Node(list(prompt))], 0
    while not finished(nodes[0].prefix):
        passes += 1
        for node in nodes:
            node.target.one_token()
        for _ in range(speed):
            last = nodes[-1]
            if len(nodes) <= depth and not last.draft.done:
                last.draft.one_token()
                if last.draft.done and not finished(last.draft.step):
                    nodes.append(Node(last.prefix + last.draft.step))
        while (valid := decide(nodes, same)) != nodes:
            for node in nodes:
                if node not in valid:
                    node.close()
            nodes = valid
            if finished(nodes[0].prefix):
                break
    nodes[0].close()
    return nodes[0].prefix, passes


def speedups(prompts: list[Tokens], depth: int) -> tuple[float, float, float]:
    """Section 6, over plain decoding: the loop in passes of the target, the loop with the
    draft's time, the rolling window."""
    before = sum(plain(prompt)[1] for prompt in prompts)
    cycles = [lookahead(prompt, depth) for prompt in prompts]
    passes = sum(target_passes for _, target_passes, _ in cycles)
    waiting = sum(draft_passes for _, _, draft_passes in cycles) / SPEED
    rounds = sum(rolling(prompt, depth)[1] for prompt in prompts)
    return before / passes, before / (passes + waiting), before / rounds


# ---- the checks


def check_plain(yours: Callable) -> Callable:
    """Your `plain` if it is right; otherwise what is wrong, and the answer's."""
    return _checked("plain", yours, plain, _plain_is_wrong)


def check_joins(yours: Callable) -> Callable:
    """Your `joins` if it is right; otherwise what is wrong, and the answer's."""
    return _checked("joins", yours, joins, _joins_is_wrong)


def check_decide(yours: Callable) -> Callable:
    """Your `decide` if it is right; otherwise what is wrong, and the answer's."""
    return _checked("decide", yours, decide, _decide_is_wrong)


def _checked(
    name: str, yours: Callable, ours: Callable, wrong: Callable[[Callable], str]
) -> Callable:
    try:
        sentence = wrong(yours)
    except NotImplementedError:
        print(
            f"Nothing is written yet; the notebook goes on with {name} of from_scratch.py."
        )
        return ours
    except Exception as error:
        sentence = f"it raised {type(error).__name__}: {error}"
    if not sentence:
        print(f"✓ {name} is right.")
        return yours
    print(f"✗ {name}: {sentence}. (The notebook goes on with that of from_scratch.py.)")
    return ours


class _Endless(Exception):
    """A loop that goes on long after the answer has ended."""


def _plain_is_wrong(yours: Callable) -> str:
    calls, original = count(1), next_step

    def counted(model: ModelRunner, prefixes: list[Tokens]) -> tuple[list[Tokens], int]:
        if next(calls) > 20:
            raise _Endless
        return original(model, prefixes)

    right, right_passes = plain(prompt)
    try:
        with _instead_of(yours, "next_step", counted):
            answer, passes = yours(list(prompt))
    except _Endless:
        return "it goes on after twenty steps: is every step appended to the chain"
    if answer == right[len(prompt) :]:
        return "the answer lacks the prompt: return the whole chain"
    if answer != right:
        return f"it ends with {codec.decode(answer[-20:])!r}: is every step appended?"
    if passes != right_passes:
        return f"{right_passes} passes were made, you count {passes}"
    return ""


def _joins_is_wrong(yours: Callable) -> str:
    for agree in ([1, 1, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1], [1, 1]):
        ends = len(agree) == 2  # the second draft step ends the answer: no bonus
        drafts = [[10 + i] for i in range(len(agree))]
        steps = [[20 + i] for i in range(len(agree) + (not ends))]

        def alike(ours: Tokens, theirs: Tokens, agree: list[int] = agree) -> bool:
            return bool(agree[ours[0] - 10])

        joined = yours(list(drafts), list(steps), alike)
        right = joins(drafts, steps, alike)
        if joined == right:
            continue
        words = ", ".join("same" if value else "different" for value in agree)
        if joined == right[:-1]:
            return f"({words}) the target's last step is missing: it is written, so it joins"
        if joined and 0 in agree and len(joined) > len(right):
            return f"({words}) a draft step after the first difference cannot be kept"
        if joined and joined[-1] in drafts and right[-1] in steps:
            return f"({words}) at the first difference the target's step joins, not the draft's"
        return f"({words}) {right} join the answer, yours are {joined}"
    return ""


class _Fake:
    """A node without models."""

    def __init__(
        self, prefix: Tokens, drafted: bool = True, written: bool = True
    ) -> None:
        self.prefix = list(prefix)
        self.draft, self.target = _FakeStep([1], drafted), _FakeStep([2], written)


class _FakeStep:
    def __init__(self, step: Tokens, done: bool) -> None:
        self.step, self.done = step, done


def _decide_is_wrong(yours: Callable) -> str:
    def decided(nodes: list[_Fake], agree: bool) -> object:
        with _instead_of(yours, "Node", _Fake):
            return yours(list(nodes), lambda ours, theirs: agree)

    for drafted, written in ((True, False), (False, True)):
        nodes = [_Fake([0], drafted, written), _Fake([0, 1])]
        if decided(nodes, agree=True) != nodes:
            return "one of the two steps is not complete: return the nodes as they are"
    nodes = [_Fake([0]), _Fake([0, 1]), _Fake([0, 1, 1])]
    if decided(nodes, agree=True) != nodes[1:]:
        return "the steps agree: the first node goes, and all others stay valid"
    for agree, window in ((False, nodes), (True, nodes[:1])):
        stay = decided(window, agree=agree)
        prefixes = [getattr(node, "prefix", None) for node in stay or []]
        if len(prefixes) != 1 or prefixes[0] in ([0], [0, 1]):
            why = (
                "there is no node after the draft's step"
                if agree
                else "the steps differ"
            )
            return f"{why}, so the target's step joins: [Node(...)]"
        if prefixes != [[0, 2]]:
            return "the new root is the old prefix and the target's step"
    return ""


@contextmanager
def _instead_of(yours: Callable, name: str, stand_in: object) -> Iterator[None]:
    """Inside, the name means something else, in your notebook and in this file."""
    places = [globals(), yours.__globals__]
    before = [names.get(name, globals()[name]) for names in places]
    for names in places:
        names[name] = stand_in
    try:
        yield
    finally:
        for names, value in zip(places, before):
            names[name] = value  # a function that lacked the name has it now
