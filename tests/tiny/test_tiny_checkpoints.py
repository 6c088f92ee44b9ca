"""The checkpoints that come with the package: found by name, loaded by plain
transformers and by us alike, and able.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lr.engine.runner import ModelRunner
from lr.errors import CheckpointError, ContextError, SettingError
from lr.model.codec import Codec, require_same
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.result import boxed
from lr.tiny.evaluate import EvalSettings, evaluate, without_layer
from lr.tiny.language import Split, problem
from lr.tiny.languages import LANGUAGES
from lr.tiny.names import CHECKPOINTS, checkpoint_path, language_of
from lr.tiny.oracle import parse


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="no tiny model 'tiny-oracle'") as caught:
        checkpoint_path("tiny-oracle")
    assert all(name in str(caught.value) for name in CHECKPOINTS)


def test_a_missing_file_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lr.tiny.names.files", lambda package: tmp_path)
    with pytest.raises(CheckpointError, match="train the model with"):
        checkpoint_path("tiny-target")


def test_all_are_small_and_a_family_speaks_the_same_tokens() -> None:
    sizes = {
        name: sum(file.stat().st_size for file in checkpoint_path(name).iterdir())
        for name in CHECKPOINTS
    }
    for family, most in (("tiny", 12e6), ("plans", 7e6)):
        members = [name for name in CHECKPOINTS if name.startswith(family)]
        assert sum(sizes[name] for name in members) < most
        for name in members:
            require_same(Codec.load(f"{family}-target"), Codec.load(name))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_transformers_writes_the_same_greedy_tokens(name: str) -> None:
    folder, codec = checkpoint_path(name), Codec.load(name)
    language = language_of(codec)
    assert language is LANGUAGES[name.partition("-")[0]]
    prompt = codec.chat(language.problem(Split.TEST, 5, 0).question)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(prompt, skip_special_tokens=True) == codec.decode(prompt)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = theirs.generate(
        torch.tensor([prompt]),
        max_new_tokens=60,
        do_sample=False,
        temperature=None,
        top_k=None,
        top_p=None,
    )
    expected = ids[0, len(prompt) :].tolist()

    runner = ModelRunner(
        load_model(name, dtype=torch.float32),
        num_blocks=32,
        vocab_size=codec.vocab_size,
    )
    branch = runner.open(prompt)
    for _ in expected:
        branch.append(int(runner.forward([branch])[0].argmax()))
    assert branch.tokens[len(prompt) :] == expected


def test_the_target_solves_and_stays_in_the_language() -> None:
    codec = Codec.load("tiny-target")
    runner = ModelRunner(
        load_model("tiny-target", dtype=torch.float32),
        num_blocks=200,
        vocab_size=codec.vocab_size,
    )
    problems = [problem(Split.TEST, i, seed=1) for i in range(6)]
    branches = [runner.open(codec.chat(what.question)) for what in problems]
    starts = [len(branch) for branch in branches]
    live = list(branches)
    while live:
        for branch, logits in zip(live, runner.forward(live), strict=True):
            branch.append(int(logits.argmax()))
        live = [b for b in live if b.tokens[-1] not in codec.eos_ids and len(b) < 400]
    right = 0
    for what, branch, start in zip(problems, branches, starts, strict=True):
        text = codec.decode(branch.tokens[start:])
        assert all(parse(step) for step in text.split("\n\n"))
        right += boxed(text) == str(what.answer)
    assert right >= 5


def test_evaluate_measures_what_it_says() -> None:
    """A model as its own draft: every token is accepted, and both solve equally well up
    to chance.
    """
    report = evaluate(
        "tiny-draft", "tiny-draft", EvalSettings(problems=2, ablation_problems=2)
    )
    total = report.total
    assert total.rates()["token acceptance"] == pytest.approx(1)
    assert (
        total.steps >= 8
        and total.positions > 100
        and total.exact <= total.accepted <= total.steps
    )
    assert "| token acceptance | 1.000 |" in report.table()
    assert [row.layer for row in report.ablation] == [None, 0, 1]
    whole, *lesser = report.ablation
    assert all(row.loss > whole.loss + 1 for row in lesser), (
        "both layers of the draft are needed"
    )
    few = EvalSettings(problems=1, ablation_problems=2, ablation_layers=(1,))
    assert evaluate("tiny-draft", "tiny-draft", few).ablation == (whole, lesser[1])
    with pytest.raises(
        SettingError, match="ablation_layers is 2, expected layers 0 to 1"
    ):
        evaluate("tiny-draft", "tiny-draft", replace(few, ablation_layers=(2,)))


def test_without_layer_skips_it_and_leaves_the_model_alone() -> None:
    """Skipped: the same logits as when a hook gives back what went into the layer."""
    model, text = load_model("tiny-draft", dtype=torch.float32), list(range(300, 330))

    def logits(one: CausalLM) -> torch.Tensor:
        runner = ModelRunner(one, num_blocks=8)
        return runner.forward([runner.open(text)], "all")[0]

    layers, whole = list(model.layers), logits(model)
    lesser = without_layer(model, 1)
    assert (
        list(lesser.layers) == [layers[0], *layers[2:]] and list(model.layers) == layers
    )
    assert torch.equal(logits(model), whole)
    hook = layers[1].register_forward_hook(lambda layer, given, made: given[0])
    assert torch.equal(logits(lesser), logits(model))
    hook.remove()
    assert not torch.equal(logits(lesser), whole)


@pytest.mark.parametrize("name", ["tiny-target", "tiny-draft"])
def test_the_context_is_used_to_its_end(name: str) -> None:
    """4,096 tokens: the cache gives what transformers computes at once; one more is
    refused."""
    folder = checkpoint_path(name)
    ids = torch.randint(
        20, 400, (4096,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0, -8:]
    runner = ModelRunner(load_model(name, dtype=torch.float32), num_blocks=300)
    branch = runner.open(ids[:4088])
    runner.forward([branch])
    logits = []
    for token in ids[4088:]:
        branch.append(token)
        logits += runner.forward([branch])
    torch.testing.assert_close(torch.stack(logits), expected, atol=2e-4, rtol=1e-4)
    branch.append(7)
    with pytest.raises(ContextError, match="4096"):
        runner.forward([branch])
