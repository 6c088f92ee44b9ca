"""`lr new variant`: a template for a method of your own, and its test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from lr.commands.show import console
from lr.errors import SettingError
from lr.types import require

VARIANT = '''\
"""NAME: what is new about the method, in one sentence.

    lr generate --variant FILE:NAME
    lr generate --variant "FILE:NAME(threshold=-0.5)"

docs/variants.md says what each part may rely on. Delete what you do not need.
"""

from lr.spec.variant import Variant
from lr.spec.verifiers.base import Requires, Verifier
from lr.types import Verdict


class CLASS(Verifier):
    """Accepts a draft step if the target finds every token of it likely enough."""

    name = "NAME"  # what reports call it
    requires = Requires.TARGET_LOGPROBS
    # What a pair holds besides prefix and draft. Requires.TARGET_STEP: the target's own step (then
    # compare pair.target_step); HIDDEN: its hidden states; NOTHING: neither. They add up with |.

    def __init__(self, threshold=-3.0):
        self.threshold = threshold

    def judge(self, pairs):
        # One Verdict per pair, in order. A verdict may depend on its own pair alone: which pairs
        # are in the batch is chance.
        return [self.one(pair) for pair in pairs]

    def one(self, pair):
        worst = min(pair.logprobs)
        # pair.note("worst", at=pair.logprobs.index(worst))  an event of your own in the trace
        why = f"least likely token {worst:.2f} nats"  # shown by lr step and lr play
        return Verdict(aligned=worst >= self.threshold, why=why, score=worst)


# class Choice:
#     """Chooses the alternative with the best score (settings: width)."""
#
#     def choose(self, place):
#         if place.more:
#             return WAIT  # from lr.spec.protocol
#         aligned = [j for j, verdict in enumerate(place.verdicts) if verdict.aligned]
#         return max(aligned, key=lambda j: place.verdicts[j].score, default=None)


def NAME(reasoner, threshold=-3.0):
    """What `--variant` calls. `reasoner` has models, codec and verifier; --variant sets the other
    parameters as in NAME(threshold=-0.5).
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
        settings={"depth": 4},  # options of the method; the caller can override them
    )
'''
TEST = '''\
"""The test of NAME: its parts keep their contracts, and it answers a question."""

from pathlib import Path

import lr
import torch
from lr.variants.kit import check_answers, check_variant
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
    """Tests what this method promises: the target writes every step. Replace it with yours."""
    reasoner = lr.Reasoner()
    variant = load_variant(f"{FILE}:NAME(threshold=0.1)", reasoner)
    plain = reasoner.generate(QUESTION, mode="ar", **HOW)
    assert reasoner.generate(QUESTION, variant=variant, **HOW).tokens == plain.tokens
'''


@dataclass(frozen=True)
class NewVariant:
    """Write NAME.py, a commented variant that runs, and test_NAME.py, which checks
    it."""

    name: tyro.conf.Positional[str]  # A Python name in lower case.
    output: Path = Path()  # The folder for both files.

    def run(self) -> None:
        fits = self.name.isidentifier() and self.name == self.name.lower()
        require(
            fits, "name", self.name, "a Python name in lower case, such as my_method"
        )
        file, test = (
            self.output / f"{self.name}.py",
            self.output / f"test_{self.name}.py",
        )
        for path in (file, test):
            if path.exists():
                raise SettingError(
                    f"{path} exists already; choose another name, or move it."
                )
        self.output.mkdir(parents=True, exist_ok=True)
        kind = self.name.title().replace("_", "")
        variant = VARIANT.replace("FILE:", f"{file}:")
        for path, text in ((file, variant), (test, TEST)):
            written = text.replace("NAME", self.name).replace("CLASS", kind)
            path.write_text(written, encoding="utf-8")
        tried = (
            f"  lr generate --variant {file}:{self.name}",
            f"  python -m pytest {test}",
        )
        console().print(f"written: {file}, {test}. Try:", *tried, sep="\n")
