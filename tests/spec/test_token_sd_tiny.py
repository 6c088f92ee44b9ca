"""Token-level speculation on the trained pair: greedy identity, and one chi-square per rule on the
law that comes out.

The exact law is proved elsewhere by enumeration (test_acceptance_law.py); this is the same claim
for the whole machine: trained models, ragged batches, caches, keyed draws. False alarm <= 1e-6 over
all rules, seeds fixed.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from scipy.stats import chisquare
from spec_kit import decode_plainly

from lr.engine.runner import ModelRunner
from lr.model.codec import Codec
from lr.model.weights import load_model
from lr.rng import Stream
from lr.spec.drafters import Drafter, LookupDrafter, ModelDrafter, SuffixDrafter, TreeDrafter
from lr.spec.protocol import Limits
from lr.spec.rules import choose_rule
from lr.spec.sampling import distribution
from lr.spec.segmenters import BlankLineSegmenter
from lr.spec.token_sd import Speculation
from lr.spec.write import StepJob, StepWriter
from lr.tiny.language import Split, problem
from lr.trace import Trace
from lr.types import Coupling, Role, SamplingParams

RULES = {
    "reject": "draft",
    "block": "draft",
    "match": "draft",
    "reject on trees": "tree",
    "match, shared noise": "draft",
}
FALSE_ALARM = 1e-6 / (2 * len(RULES))
CODEC = Codec.load("tiny-target")
MODELS = {
    dtype: (load_model("tiny-target", dtype=dtype), load_model("tiny-draft", dtype=dtype))
    for dtype in (torch.float32, torch.float64)
}
BATCH, BATCHES = 250, 8


def writer(dtype: torch.dtype, temperature: float, drafter: str, rule: str, k: int) -> StepWriter:
    target, draft = (
        ModelRunner(model, num_blocks=6000, vocab_size=CODEC.vocab_size) for model in MODELS[dtype]
    )
    sampling = SamplingParams(temperature)
    coupling = Coupling.SHARED if "shared" in rule else Coupling.INDEPENDENT
    drafters: dict[str, Drafter] = {
        "ngram": LookupDrafter(),
        "suffix": SuffixDrafter(),
        "draft": ModelDrafter(draft, sampling, coupling=coupling, eos_ids=CODEC.eos_ids),
        "tree": TreeDrafter(draft, sampling, branching=(2, 2, 1)),
    }
    return StepWriter(
        role=Role.TARGET,
        runner=target,
        sampling=sampling,
        segmenter=partial(BlankLineSegmenter, CODEC.token_bytes),
        eos_ids=CODEC.eos_ids,
        stream=Stream.root(11).fold_in("tiny law"),
        trace=Trace(),
        speculation=Speculation(drafters[drafter], choose_rule(rule.split()[0].strip(",")), k),
    )


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft", "tree"])
def test_greedy_speculation_is_greedy_decoding(drafter: str) -> None:
    for k in (1, 3, 8):
        prompt = CODEC.chat(problem(Split.TEST, k).question)
        made = writer(torch.float64, 0.0, drafter, "reject", k)
        speculative = [e.step for e in decode_plainly(prompt, made, Limits(200))]
        made.speculation = None
        assert speculative == [e.step for e in decode_plainly(prompt, made, Limits(200))]


@pytest.mark.parametrize("rule", RULES)
def test_the_law_of_two_tokens(rule: str) -> None:
    """Thousands of two-token continuations of one prompt at temperature 1, in batches of forks,
    against the target's own rows.
    """
    made = writer(torch.float32, 1.0, RULES[rule], rule, 3)
    root = made.runner.open(CODEC.chat(problem(Split.TEST, 0).question))
    first = distribution(made.runner.forward([root])[0][None], made.sampling)[0].double()
    made.runner.rewind(root, len(root) - 1)
    root.append(CODEC.chat(problem(Split.TEST, 0).question)[-1])
    pairs: list[tuple[int, ...]] = []
    for batch in range(BATCHES):
        branches = [made.runner.fork(root) for _ in range(BATCH)]
        steps = made.write(
            [StepJob(branch, batch * BATCH + i, 2) for i, branch in enumerate(branches)]
        )
        pairs += [step.tokens for step in steps]
        for branch in branches:
            made.close(branch)
    likeliest = int(first.argmax())
    root.append(likeliest)
    second = distribution(made.runner.forward([root])[0][None], made.sampling)[0].double()
    assert agrees(first, [pair[0] for pair in pairs])
    assert agrees(second, [pair[1] for pair in pairs if pair[0] == likeliest])


def agrees(law: torch.Tensor, drawn: list[int]) -> bool:
    """Pearson's test, tokens with an expectation below 5 counted as one."""
    expected = law / law.sum() * len(drawn)
    common = (expected >= 5).nonzero()[:, 0].tolist()
    counts = Counter(drawn)
    observed = [counts[token] for token in common]
    wanted = expected[common].tolist()
    rest = len(drawn) - sum(wanted)
    if rest > 0.5:
        observed, wanted = [*observed, len(drawn) - sum(observed)], [*wanted, rest]
    assert len(wanted) > 1, "nothing to tell apart"
    scale = sum(observed) / sum(wanted)
    return bool(chisquare(observed, [w * scale for w in wanted]).pvalue > FALSE_ALARM)
