"""The decoding benchmark: its contenders do the same work, its arithmetic is by repeat,
its command says what it measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from lr import registry
from lr.commands.cli import main
from lr.engine.runner import ModelRunner
from lr.measure.bench.decode import (
    SAMPLED,
    BareLoop,
    Decoded,
    DecodeLane,
    DecodePlan,
    Goal,
    Timing,
    contenders,
    goals,
    hugging_face_model,
    measure,
    random_model,
)
from lr.measure.bench.report import Spread, write_json
from lr.model.dummy import shape
from lr.model.qwen import CausalLM
from lr.tiny import CHECKPOINTS
from lr.tiny.names import tiny_config
from lr.types import SamplingParams

SHAPE = replace(tiny_config(2, 50), hidden_size=24, head_dim=10, intermediate_size=30)
SHAPES = {
    "qwen3": SHAPE,
    "qwen2": replace(SHAPE, head_dim=6, qkv_bias=True, qk_norm=False),
    "untied": replace(SHAPE, tie_word_embeddings=False, num_kv_heads=4),
}
PROMPT = (7, 3, 20, 11, 49)


@pytest.fixture(params=list(SHAPES))
def model(request: pytest.FixtureRequest) -> CausalLM:
    made = random_model(SHAPES[request.param], torch.float64)
    for name, parameter in made.named_parameters():
        if "norm" not in name:
            parameter.mul_(
                8
            )  # far from uniform, so that one token is clearly the likeliest
    return made


def test_the_bare_loop_computes_what_the_model_computes(model: CausalLM) -> None:
    runner, loop = ModelRunner(model, num_blocks=8), BareLoop(model, 2, len(PROMPT))
    rows = runner.forward(
        [runner.open(PROMPT), runner.open(PROMPT[::-1])], logits="all"
    )
    with torch.inference_mode():
        for i, tokens in enumerate(zip(PROMPT, PROMPT[::-1], strict=True)):
            logits = loop.step(torch.tensor(tokens))
            torch.testing.assert_close(
                logits, torch.stack([row[i] for row in rows]), rtol=0, atol=1e-10
            )


@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_contenders_write_the_same_tokens(model: CausalLM, rows: int) -> None:
    greedy = contenders(model, SamplingParams(0.0)).values()
    written = [decode(PROMPT, rows, 12) for decode in greedy]
    assert all(one.tokens == written[0].tokens for one in written)
    assert all(one.seconds > 0 for one in written)
    assert written[0].tokens == written[0].tokens[:1] * rows
    assert [len(row) for row in written[0].tokens] == [12] * rows


def test_sampling_draws(model: CausalLM) -> None:
    sampled = contenders(model, SamplingParams(2.0))[SAMPLED]
    first, second = sampled(PROMPT, 2, 12).tokens
    assert first != second


def test_transformers_shares_our_weights(model: CausalLM) -> None:
    theirs = hugging_face_model(model)
    assert (
        theirs.get_input_embeddings().weight.data_ptr()
        == model.embedding.weight.data_ptr()
    )
    assert theirs.get_input_embeddings().weight.dtype is torch.float64
    ours = {parameter.data_ptr() for parameter in model.parameters()}
    starts = {p.untyped_storage().data_ptr() for p in theirs.parameters()}
    assert starts <= ours


def test_spreads_and_ratios_are_taken_by_repeat() -> None:
    ours = Timing("m", "lr", 2, 1, [2.0, 4.0, 2.0])
    theirs = Timing("m", "t", 2, 1, [4.0, 8.0, 5.0])
    assert theirs.relative_to(ours) == Spread(2.0, 2.0, 2.25)
    assert ours.spread == Spread(2.0, 2.0, 3.0)
    assert ours.tokens_per_second == 1000.0


def test_contenders_take_turns_and_the_warm_up_is_dropped() -> None:
    """Contenders that take a second per row and step, and write down their calls."""
    calls: list[tuple[str, int, int]] = []

    def counting(name: str, prompt: Sequence[int], rows: int, steps: int) -> Decoded:
        calls.append((name, rows, steps))
        return Decoded(float(rows * steps), [])

    lanes = [DecodeLane("m", name, partial(counting, name), (1,)) for name in "ab"]
    done: list[None] = []
    plan = DecodePlan(batches=(1, 4), tokens=6, repeats=3, threads=1, warm_up=2)
    timings = measure(lanes, plan, lambda: done.append(None))
    runs = [(batch, steps) for batch in (1, 4) for steps in (2, 6, 6, 6)]
    assert calls == [(name, *run) for run in runs for name in "ab"]
    assert [(t.contender, t.batch, t.ms) for t in timings] == [
        ("a", 1, [1000.0] * 3),
        ("b", 1, [1000.0] * 3),
        ("a", 4, [4000.0] * 3),
        ("b", 4, [4000.0] * 3),
    ]
    assert len(done) == len(lanes) * plan.runs == len(calls)


def judged(*timings: tuple[str, str, int, float]) -> dict[bool | None, list[Goal]]:
    taken = [
        Timing(name, contender, batch, 1, [ms, ms])
        for name, contender, batch, ms in timings
    ]
    found = list(goals(taken))
    return {
        met: [goal for goal in found if goal.met is met] for met in (True, False, None)
    }


def test_goals_are_met_missed_or_not_measured() -> None:
    assert [len(v) for v in judged().values()] == [0, 0, 5]
    tiny = [
        ("tiny-target", "lr", 1, 10.0),
        ("tiny-target", "bare loop", 1, 9.0),
        ("tiny-target", "transformers", 1, 26.0),
    ]
    sampled = [
        ("tiny-target", "lr, sampled", 1, 10.0),
        ("tiny-draft", "lr, sampled", 1, 2.5),
    ]
    shape = [("0.6b-fp32", "lr", 1, 100.0), ("0.6b-fp32", "transformers", 1, 90.0)]
    found = judged(*tiny, *sampled, *shape)
    assert [goal.measured for goal in found[True]] == [
        "2.60 (2.60-2.60)",
        "1.11 (1.11-1.11)",
    ]
    assert [goal.measured for goal in found[False]] == [
        "0.90 (0.90-0.90)",
        "0.25 (0.25-0.25)",
    ]
    assert [goal.text.split(",")[0] for goal in found[None]] == ["0.6b-bf16"]


def test_the_shape_is_that_of_qwen3_06b() -> None:
    with torch.device("meta"):
        assert (
            sum(p.numel() for p in CausalLM(shape("Qwen3-0.6B")).parameters())
            == 596_049_920
        )


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    write_json({"a": 1}, target)
    with pytest.raises(TypeError):
        write_json({"a": object()}, target)
    assert json.loads(target.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in CHECKPOINTS:
        monkeypatch.setitem(registry.checkpoints, name, tmp_path)
    target = tmp_path / "figures.json"
    flags = [
        "--models",
        "tiny-draft",
        "random-12",
        "--batches",
        "1",
        "2",
        "--tokens",
        "2",
        "--repeats",
        "2",
    ]
    assert main(["bench", "decode", *flags, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert "tiny-draft is left out: the files of tiny-draft are missing" in out
    assert f"torch {torch.__version__}" in out
    assert "random-12, 1 thread" in out
    content = json.loads(target.read_text())
    rows = [
        (t["contender"], t["batch"], t["threads"], len(t["ms"]))
        for t in content["timings"]
    ]
    assert rows == [
        (who, b, 1, 2)
        for b in (1, 2)
        for who in ("lr", "lr, sampled", "bare loop", "transformers")
    ]
    assert {goal["met"] for goal in content["goals"]} <= {True, False, None}
    assert content["conditions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--models", "tiny-giant"],
            "models is 'tiny-giant', expected names among tiny-target",
        ),
        (["--repeats", "1"], "repeats is 1, expected at least 2"),
        (["--batches", "0"], "batches is (0,)"),
        (["--tokens", "0"], "tokens is 0"),
        (["--threads", "0"], "threads is 0"),
        (["--json", "nowhere/figures.json"], "there is no folder nowhere"),
    ],
)
def test_impossible_flags_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", *flags]) == 2
    assert message in capsys.readouterr().err
