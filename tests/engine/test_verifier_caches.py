"""How many caches an answer holds for its verifier, and one judge in several threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lr.engine import verifiers
from lr.engine.runner import ModelRunner
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


def test_threads_share_a_reasoner_with_a_judge():
    with Reasoner(verifier="judge") as reasoner:

        def answer(seed):
            return reasoner.generate(QUESTION, mode="lr", seed=seed).tokens

        alone = [answer(seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(answer, range(4)))
    assert together == alone
