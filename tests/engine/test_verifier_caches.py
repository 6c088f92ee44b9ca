"""How many caches an answer holds for its verifier, and one judge in several threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lr.engine import verifiers
from lr.engine.runner import ModelRunner
from lr.measure.memory import plan_memory
from lr.model.device import DeviceMap
from lr.options import make_options
from lr.reasoner import Reasoner

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
OWN_CACHES = {"judge": 1, "score": 1}


@pytest.mark.parametrize(
    "name", [name for name in verifiers.THRESHOLDS if name != "embedding"]
)
def test_only_a_verifier_that_asks_a_model_holds_a_cache(name, monkeypatch):
    """Beside those of target and draft. `likelihood` had one of the whole context."""
    made = []
    begin = ModelRunner.__init__

    def counted(self, *args, **options):
        made.append(self)
        begin(self, *args, **options)

    monkeypatch.setattr(ModelRunner, "__init__", counted)
    with Reasoner(verifier=name) as reasoner:
        reasoner.generate(QUESTION, mode="lr", max_tokens=40)
    assert len(made) == 2 + OWN_CACHES.get(name, 0)


def test_the_memory_plan_has_no_cache_for_the_likelihood():
    def size(verifier):
        names = ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", None)
        places = DeviceMap.of("cpu")
        options = make_options(mode="lr")
        plan = plan_memory(names, places, None, options, 2048, verifier=verifier)
        return sum(cache for _, _, _, cache in plan.models)

    assert size("likelihood") == size("exact") < size("score")


def test_threads_share_a_reasoner_with_a_judge():
    with Reasoner(verifier="judge") as reasoner:

        def answer(seed):
            return reasoner.generate(QUESTION, mode="lr", seed=seed).tokens

        alone = [answer(seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(answer, range(4)))
    assert together == alone
