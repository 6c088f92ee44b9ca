"""A variant's parts, in answers of random checkpoints: each is used, and made for each
answer anew. (What a part may not be or return is in `mistakes_kit.py`.)"""

from typing import ClassVar

import pytest
import torch

from lr import page_engine
from lr.errors import SettingError
from lr.model.quantize import Quantised
from lr.reasoner import Reasoner
from lr.spec.segmenters import FixedSegmenter
from lr.spec.variant import Controller, StepSource, Variant
from lr.spec.verifiers.named import RandomVerifier
from lr.types import Origin

QUESTION = "How many coins does Ann have?"
OPTIONS = {
    "segmenter": "fixed",
    "segment_tokens": 6,
    "max_tokens": 60,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def reasoner(target, draft):
    with Reasoner(target, draft, "exact", dtype=torch.float64) as reasoner:
        yield reasoner


@pytest.fixture(scope="module")
def answer(reasoner):
    """Generates with `OPTIONS`."""
    return lambda **options: reasoner.generate(QUESTION, **{**OPTIONS, **options})


# Steps


class Zigzag(Controller):
    """Depths in turn; keeps what it was told."""

    heard: ClassVar = []

    def __init__(self):
        self.heard.clear()

    def depth(self, progress):
        self.heard.append(progress)
        return (3, 0, 99, 1)[len(self.heard) % 4]


@pytest.mark.parametrize("schedule", ["sync", "paper", "depth"])
def test_a_controller_hears_of_every_step_and_changes_no_token(answer, schedule):
    plain = answer(mode="ar")
    ahead = answer(variant=Variant(controller=Zigzag), schedule=schedule)
    assert ahead.tokens == plain.tokens
    steps = [progress.steps for progress in Zigzag.heard]
    assert steps == list(range(1, len(ahead.steps) + 1))


def test_a_controller_that_gives_up_stops_the_drafts(answer):
    class GiveUp(Controller):
        def depth(self, progress):
            return 0

    variant = Variant(RandomVerifier(0.0), controller=GiveUp)
    result = answer(variant=variant, depth=2)
    assert {step.origin for step in result.steps[4:]} == {Origin.TARGET}
    assert result.stats.drafted < len(result.steps)


def test_a_segmenter_of_ones_own(answer):
    def fours(token_bytes):
        return FixedSegmenter(token_bytes, 4)

    result = answer(variant=Variant(segmenter=fours), segmenter="blank_line")
    assert result.tokens == answer(mode="ar", segment_tokens=4).tokens


class Recorded(StepSource):
    """Knows the first `known` steps of the answer, of six tokens each."""

    def __init__(self, steps, known):
        self.steps = steps[:known]

    def write(self, places):
        numbers = [(len(place.tokens) - place.prompt) // 6 for place in places]
        return [self.steps[n] if n < len(self.steps) else None for n in numbers]


@pytest.mark.parametrize(
    "mode, width, driver",
    [
        ("lr", 1, "lockstep"),
        ("lr", 2, "overlapped"),
        ("lr+sd", 2, "lockstep"),
        ("lr+sd", 1, "overlapped"),
    ],
)
def test_a_step_source_writes_drafts_and_the_model_the_others(
    answer, driver, width, mode
):
    options = {"driver": driver, "width": width, "mode": mode}
    usual = answer(**options)
    steps = [step.tokens for step in usual.steps]
    half = len(steps) // 2
    result = answer(variant=Variant(step_source=Recorded(steps, half)), **options)
    assert result.tokens == usual.tokens
    assert {step.origin for step in result.steps[:half]} == {Origin.ACCEPTED}


def test_the_page_refuses_step_sources(reasoner):
    variant = Variant(step_source=Recorded((), 0))
    answer = page_engine.run(reasoner, "Why?", variant=variant, mode="lr")
    with pytest.raises(SettingError, match="page"):
        answer.finish()


# The target as its own draft


@pytest.mark.parametrize("mode", ["sd", "lr"])
@pytest.mark.parametrize("driver", ["lockstep", "overlapped"])
@pytest.mark.parametrize(
    "form, agreement", [("{}", 1.0), ("int8:{}", 0.8), ("int4:{}", 0.2)]
)
def test_the_target_drafts_for_itself_by_name(reasoner, mode, driver, form, agreement):
    """The tokens are those of plain decoding, the more of them from the draft the more
    it is like the target; the target itself is not quantised."""
    target = reasoner.engine.names["target"]
    draft = form.format(target)
    options = OPTIONS | {"acceptance": "match", "coupling": "shared", "max_tokens": 40}
    with Reasoner(target, draft, "exact", dtype=torch.float64) as drafting:
        result = drafting.generate(QUESTION, mode=mode, driver=driver, **options)
        models = drafting.engine.draft_model, drafting.engine.target_model
        quantised = [
            any(isinstance(module, Quantised) for module in model.modules())
            for model in models
        ]
    assert quantised == [form != "{}", False]
    plain = reasoner.generate(QUESTION, mode="ar", **options)
    assert result.tokens == plain.tokens
    stats = result.stats
    rounds = stats.rounds
    if mode == "sd":
        assert rounds.tried > 0 and rounds.accepted >= agreement * rounds.tried
    elif agreement == 1:
        assert stats.accepted >= stats.judged - 1 > 0
