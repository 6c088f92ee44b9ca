"""What the tests of verifiers share: steps made of text, a small random model that
speaks the tiny tokens, and a verifier with prepared answers.
"""

from functools import lru_cache

from model_kit import random_model, runner_on
from tiny_training.vocabulary import build_tokenizer

from lr.model.codec import Codec
from lr.spec.verifiers.base import Pair
from lr.spec.verifiers.judge import JudgeVerifier, PromptedModel
from lr.spec.verifiers.named import ScoreReading, ScoreVerifier
from lr.types import Finish, Step

ADD = "Then Ben has 3 more than Ann, so we get 7 + 3 = 10 coins."
ADD_OTHERWISE = "Since Ben owns 3 more than Ann, the number is 7 plus 3 is 10 coins."
ADD_WRONG = "Then Ben has 3 more than Ann, so we get 7 + 3 = 11 coins."
FACT = "Initially Ann has 7 coins."
PROMPT = "Which of the two has more coins than the other?\n\n{first}\n\n{second}"


@lru_cache
def codec():
    return Codec(build_tokenizer(), name="tiny")


@lru_cache
def model(seed=0):
    return random_model(seed, vocab_size=codec().vocab_size)


class Watched:
    """A runner on a random model, and (branches, tokens) of each of its forwards."""

    def __init__(self, seed=0, **sizes):
        self.forwards = []
        self.runner = runner_on(
            model(seed),
            observer=lambda b, n, seconds: self.forwards.append((b, n)),
            **sizes,
        )

    @property
    def prompted(self):
        return PromptedModel(self.runner, codec())

    @property
    def num_used(self):
        return self.runner.cache.pool.num_used

    def last_logits(self, tokens):
        """The logits [v] after `tokens`, by a forward that leaves nothing behind."""
        branch = self.runner.open(tokens)
        [logits] = self.runner.forward([branch])
        self.runner.close(branch)
        return logits


def step(text):
    return Step(tuple(codec().encode(text + "\n\n")), Finish.BOUNDARY)


def pair(draft, target=None, *, prefix="How many coins?"):
    rival = None if target is None else step(target)
    return Pair(tuple(codec().encode(prefix)), step(draft), rival)


def judge(prompted=None):
    prompted = prompted or Watched().prompted
    verifier = JudgeVerifier(prompted, codec().decode, prompt=PROMPT)
    verifier.least_mass = 0.0  # a random model nearly always answers something else
    return verifier


def score(prompted=None, reading=ScoreReading.EXPECTED):
    verifier = ScoreVerifier(
        prompted or Watched().prompted, threshold=4.5, reading=reading
    )
    verifier.least_mass = 0.0
    return verifier
