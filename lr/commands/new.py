"""`lr new variant`: a file to begin a method of one's own with, and its test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

VARIANT = '''\
"""NAME: what is new about it, in a sentence.

    lr generate --variant FILE:NAME
    lr generate --variant "FILE:NAME(threshold=-0.5)"

What each part may rely on: docs/variants.md. Take out what you do not need.
"""

from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import Verdict


class CLASS(Verifier):
    """Accepts a draft step whose every token the target finds likely enough."""

    name = "NAME"  # what reports call it
    requires = Requires.TARGET_LOGPROBS
    # What a pair holds besides prefix and draft. Requires.TARGET_STEP: the target's own step (then
    # compare pair.target_step); HIDDEN: its hidden states; NOTHING: neither. They add up with |.

    def __init__(self, threshold=-3.0):
        self.threshold = threshold

    def judge(self, pairs):
        # One Verdict per pair, in order. A verdict depends on its own pair alone: the batch is
        # whatever happens to be ready.
        return [self.one(pair) for pair in pairs]

    def one(self, pair):
        worst = min(pair.logprobs)
        # pair.note("worst", at=pair.logprobs.index(worst))  an event of your own in the trace
        why = f"least likely token {worst:.2f} nats"  # people read it: lr step, lr play
        return Verdict(aligned=worst >= self.threshold, why=why, score=worst)


# class Choice:
#     """Among several alternatives (settings: width), the one with the best score."""
#
#     def choose(self, place):
#         if place.more:
#             return WAIT  # from lr.spec.protocol
#         aligned = [j for j, verdict in enumerate(place.verdicts) if verdict.aligned]
#         return max(aligned, key=lambda j: place.verdicts[j].score, default=None)


def NAME(reasoner, threshold=-3.0):
    """What `--variant` calls. `reasoner` has models, codec and verifier; the other parameters are
    given as NAME(threshold=-0.5).
    """
    return Variant(
        verifier=CLASS(threshold),
        # chooser=Choice(),       which alternative is accepted
        # router=...,             who writes a step: draft or target
        # controller=...,         how far to look ahead from here
        # may_follow=...,         whether drafts may follow an unverified draft step
        # proposer=...,           draft steps without a model
        # corrector=...,          how the target writes after a rejection
        # segmenter=..., schedule=..., drafter=..., rule=...,
        settings={"depth": 4},  # options of the method; what the caller changes wins
    )
'''
TEST = '''\
"""The test of NAME: its parts keep their contracts, and an answer comes out."""

from pathlib import Path

import lr
import torch
from lr.testing import check_answers, check_variant
from lr.variants.loading import load_variant

FILE = Path(__file__).with_name("NAME.py")


QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many has Ben?"
HOW = {"seed": 1, "max_tokens": 48}


def test_every_part_keeps_its_contract():
    reasoner = lr.Reasoner()
    for found in check_variant(lambda: load_variant(f"{FILE}:NAME", reasoner)):
        print(found)


def test_an_answer_does_not_depend_on_the_others():
    with lr.Reasoner(dtype=torch.float64) as reasoner:
        print(check_answers(lambda: load_variant(f"{FILE}:NAME", reasoner), reasoner, **HOW))


def test_it_answers():
    reasoner = lr.Reasoner()
    variant = load_variant(f"{FILE}:NAME", reasoner)
    result = reasoner.generate(QUESTION, variant=variant, **HOW)
    assert result.steps
    assert reasoner.generate(QUESTION, variant=variant, **HOW).tokens == result.tokens


def test_a_threshold_that_nothing_reaches_leaves_plain_decoding():
    """What the method promises, here: the target writes every step. Put yours in its place."""
    reasoner = lr.Reasoner()
    variant = load_variant(f"{FILE}:NAME(threshold=0.1)", reasoner)
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    assert reasoner.generate(QUESTION, variant=variant, **HOW).tokens == plain.tokens
'''


@dataclass(frozen=True)
class NewVariant:
    """Write NAME.py, a commented variant that runs, and test_NAME.py, which checks it."""

    name: tyro.conf.Positional[str]  # What it is called: a Python name in small letters.
    output: Path = Path()  # The folder for both files.

    def run(self) -> None:
        fits = self.name.isidentifier() and self.name == self.name.lower()
        require(fits, "name", self.name, "a Python name in small letters, such as my_method")
        file, test = self.output / f"{self.name}.py", self.output / f"test_{self.name}.py"
        for path in (file, test):
            if path.exists():
                raise SettingError(f"{path} is there already; choose another name, or move it.")
        self.output.mkdir(parents=True, exist_ok=True)
        kind = "".join(part.capitalize() for part in self.name.split("_"))
        for path, text in ((file, VARIANT), (test, TEST)):
            made = text.replace("FILE:", f"{file}:") if path is file else text
            written = made.replace("NAME", self.name).replace("CLASS", kind)
            path.write_text(written, encoding="utf-8")
        out = console()
        out.print(f"written: {file}, {test}. Try:", soft_wrap=True)
        out.print(f"  lr generate --variant {file}:{self.name}", soft_wrap=True)
        out.print(f"  python -m pytest {test}", soft_wrap=True)
