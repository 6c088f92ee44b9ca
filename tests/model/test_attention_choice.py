"""Which attention is chosen, why the others are not, and what happens when one is asked
for that cannot run.
"""

import sys
from dataclasses import replace

import pytest
import torch
from attention_kit import TILES, fake_flash_attention, needs_triton, tile_attention
from model_kit import random_model

from lr.errors import SettingError
from lr.model.attention import REFERENCE, SDPA, Tiles
from lr.model.attention_choice import (
    AttentionNeeds,
    candidates,
    choose_attention,
    equip,
    trial,
)
from lr.reasoner import Reasoner
from lr.registry import SAMPLE_QUESTION

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = AttentionNeeds(CPU, torch.bfloat16, (4, 2, 16))
MISSING = "the package is missing"


def test_the_first_that_works_is_taken_or_what_is_asked_for(monkeypatch):
    here = {"flash": MISSING, "triton": replace(TILES, name="triton"), "sdpa": SDPA}
    monkeypatch.setattr(
        "lr.model.attention_choice.find_kinds", lambda name, needs: [(name, here[name])]
    )
    assert choose_attention("auto", BF16).name == "triton"
    with pytest.raises(SettingError, match=MISSING):
        choose_attention("flash", BF16)
    here["flash"] = replace(TILES, name="flash")
    assert choose_attention("auto", BF16).name == "flash"
    assert choose_attention("triton", BF16).name == "triton"
    here["flash"] = here["triton"] = MISSING
    assert choose_attention("auto", BF16) is SDPA
    with pytest.raises(SettingError, match="auto"):
        choose_attention("fast", BF16)


def reasons(name, needs):
    """Why nothing that goes by this name works."""
    found = dict(candidates(needs, name))
    assert {type(reason) for reason in found.values()} == {str}
    return {label: str(reason) for label, reason in found.items()}


def test_what_cannot_run_is_refused_without_a_trial(monkeypatch):
    on_gpu = replace(BF16, device=CUDA)
    for name in ("flash", "triton"):
        assert "device of type cuda" in reasons(name, BF16)[name]
        exact = replace(on_gpu, dtype=torch.float64)
        assert "float64" in reasons(name, exact)[name]
    monkeypatch.setitem(sys.modules, "triton", None)
    for module in [name for name in sys.modules if name.startswith("lr.kernels.")]:
        monkeypatch.delitem(sys.modules, module)
    for name in ("flash", "triton"):  # both are built on it
        assert "triton" in reasons(name, on_gpu)[name]


@needs_triton
def test_each_package_has_its_reason(monkeypatch):
    """A package that is missing, one that cannot be imported, one whose name space
    another has made, and one that does not fit this machine."""
    on_gpu = replace(BF16, device=CUDA)
    fake_flash_attention(monkeypatch, {})
    assert all("flash_attn" in why for why in reasons("flash", on_gpu).values())

    class Broken:
        def __getattr__(self, name):
            raise OSError("undefined symbol")

    fake_flash_attention(monkeypatch, {"flash-attn-4": print})
    monkeypatch.setitem(sys.modules, "flash_attn_interface", Broken())
    monkeypatch.setattr(
        "lr.model.attention_choice.trial", lambda kind, needs: "no pages on SM 8.0"
    )
    four, three, two = reasons("flash", on_gpu).values()
    assert "SM 8.0" in four
    assert "undefined symbol" in three
    assert "flash_attn_varlen_func" in two and "flash_attn" in two
    with pytest.raises(SettingError, match="undefined symbol"):
        choose_attention("flash", on_gpu)


def refuses_pages(tiles, cache):
    raise RuntimeError("this backend takes no block table\n and more lines")


def sees_what_comes_later(tiles, cache):
    return tile_attention(replace(tiles, positions=tiles.positions + 1), cache)


def reads_a_neighbour(tiles, cache):
    return tile_attention(replace(tiles, blocks=tiles.blocks.roll(1, 1)), cache)


def not_a_number(tiles, cache):
    attend = tile_attention(tiles, cache)

    def spoilt(layer, q, k, v):
        return attend(layer, q, k, v) * torch.nan

    return spoilt


@pytest.mark.parametrize("form", ["ragged", "tiles"])
@pytest.mark.parametrize(
    "kernel, reason",
    [
        (refuses_pages, "takes no block table"),
        (sees_what_comes_later, "wrong result"),
        (reads_a_neighbour, "wrong result"),
        (not_a_number, "wrong result"),
    ],
)
def test_a_trial_finds_a_kernel_that_does_not_work(kernel, reason, form):
    def ragged(batch, cache):
        return kernel(Tiles.of(batch, 3), cache)

    wrong = {"ragged": {"ragged": ragged}, "tiles": {"tiles": kernel}}[form]
    why_not = trial(replace(TILES, **wrong), BF16)
    assert reason in why_not
    assert "more lines" not in why_not


def test_a_trial_is_content_with_what_is_right():
    for kind in (SDPA, TILES):
        assert trial(kind, BF16) == ""
    assert trial(SDPA, AttentionNeeds(CPU, torch.float64, (6, 3, 8))) == ""


def test_a_model_is_equipped_and_equipped_anew(monkeypatch):
    """The layers that one kind replaces are the ordinary ones again with another."""

    def install(layers, norm):
        layers[0].forward = norm.forward = "installed"

    kinds = {"triton": replace(TILES, install=install), "sdpa": SDPA}
    monkeypatch.setattr(
        "lr.model.attention_choice.find_kinds",
        lambda name, needs: [(name, kinds[name])],
    )
    monkeypatch.setattr("lr.model.attention_choice.trial", lambda kind, needs: "")
    model = random_model(0, num_layers=2)
    equip(model, "triton", graphs=False)
    assert model.norm.forward == model.layers[0].forward == "installed"
    assert not model.graphs
    equip(model, "sdpa")
    assert model.attention is SDPA
    assert "forward" not in vars(model.norm) and "forward" not in vars(model.layers[0])
    assert not model.replayable


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="says what happens where there is no CUDA"
)
def test_info_says_what_is_taken_and_why(cli):
    lines = [line.split() for line in cli("info").out.splitlines()]
    assert ["triton", "no:"] in [words[:2] for words in lines]
    assert ["sdpa", "taken"] in lines


def test_the_attention_is_chosen_for_both_models():
    tokens = set()
    for name, kind in (("reference", REFERENCE), ("sdpa", SDPA)):
        with Reasoner(attention=name) as reasoner:
            for model in (reasoner.engine.target_model, reasoner.engine.draft_model):
                assert model.attention is kind
            tokens.add(reasoner.generate(SAMPLE_QUESTION, seed=3, max_tokens=40).tokens)
    assert len(tokens) == 1
