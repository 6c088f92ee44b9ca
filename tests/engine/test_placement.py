"""Models on several devices: what the draft's worker shares with this process, and that
answers are the same wherever target, draft and judge are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import write_checkpoint
from second_device import ELSEWHERE, SecondDevice, load
from spec_kit import random_model

from lr import Reasoner
from lr.engine.engine import Models, Run
from lr.engine.runner import ModelRunner
from lr.engine.verifiers import VerifierChoice
from lr.engine.worker import DraftWorker
from lr.errors import SettingError
from lr.model.codec import Codec
from lr.model.device import DeviceMap
from lr.model.qwen import CausalLM
from lr.model.weights import load_model
from lr.options import make_options
from lr.reasoner import draft_worker
from lr.rng import Stream
from lr.spec.acceptance import Decision, Draws, RejectRule
from lr.spec.drafters import ModelDrafter
from lr.spec.token_sd import Context, Speculation, speculate
from lr.spec.write import StepWriter
from lr.types import SamplingParams

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


def worker(model: CausalLM, device: str) -> DraftWorker:
    codec, where = Codec.load("tiny-draft"), torch.device(device)
    map_ = DeviceMap((where,), torch.device("cpu") if device == "cpu" else where, where)
    models = Models(codec, model, model, codec.vocab_size, None)
    return draft_worker("tiny-draft", models, map_)


def test_a_thread_shares_the_weights_a_process_loads_its_own() -> None:
    model = load_model("tiny-draft", dtype=torch.float32)
    shared = worker(model, "cuda:0")
    assert shared.as_thread and shared.load()[0].model is model
    apart = worker(model, "cpu")
    other = apart.load()[0].model
    assert not apart.as_thread and other is not model
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_a_worker_thread_on_the_same_weights_answers_as_lockstep_does() -> None:
    """What one GPU for both does, on the CPU: the thread and the target's loop use one
    model object at the same time.
    """
    with Reasoner("tiny-target", "tiny-draft", "oracle") as reasoner:
        models = reasoner.models
        assert isinstance(models.draft, CausalLM) and models.worker is not None
        thread = worker(models.draft, "cuda:0")
        models.worker.load, models.worker.as_thread = thread.load, True
        settings = {"mode": "lr+sd", "drafter": "draft", "max_tokens": 120}
        one = reasoner.generate(QUESTION, driver="overlapped", **settings)
        assert (
            one.tokens
            == reasoner.generate(QUESTION, driver="lockstep", **settings).tokens
        )


class Elsewhere(RejectRule):
    """Decides without a look at the numbers, which "meta" does not have."""

    def verify(
        self, p_rows: torch.Tensor, proposals: list, draws: object
    ) -> list[Decision]:
        self.devices = {
            p_rows.device.type,
            *(proposal.q.device.type for proposal in proposals),
        }
        return [Decision((), 0) for _ in proposals]


def test_a_rule_gets_p_and_q_on_the_device_of_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the target on another kind of device than its draft model."""
    monkeypatch.setattr(
        "lr.spec.token_sd.distribution", lambda logits, _: logits.softmax(-1)
    )
    draft, rule, sampling = random_model(2), Elsewhere(), SamplingParams(1.0)
    small = ModelRunner(draft, num_blocks=9, block_size=4)
    large = ModelRunner(random_model(1).to("meta"), num_blocks=9, block_size=4)
    speculation = Speculation(ModelDrafter(small, sampling), rule, 2)
    context = Context(large.open([1, 2, 3]), 2, Draws(Stream.root(0), 0))
    speculate(large, sampling, speculation, [context])
    assert rule.devices == {"meta"}


CHAINS, RULES = ("draft", "ngram", "suffix"), ("reject", "block", "match")
SPECULATING: list[dict] = [
    *(
        {"mode": "sd", "drafter": name, "acceptance": rule}
        for name in CHAINS
        for rule in RULES
    ),
    *(
        {"mode": "sd", "drafter": "tree", "acceptance": rule}
        for rule in ("reject", "match")
    ),
    *(
        {"mode": "lr+sd", "drafter": "step", "acceptance": r, "schedule": "sync"}
        for r in RULES
    ),
    *(
        {"mode": "lr+sd", "drafter": "tree", "acceptance": rule}
        for rule in ("reject", "match")
    ),
]
"""Every drafter with every rule that it goes with; in the last ones the draft's steps
come from a process of their own where the driver is overlapped."""
SHORT: dict = {"segmenter": "fixed", "segment_tokens": 4, "max_tokens": 16, "depth": 2}
"""Four steps, whatever is said: a pass of several processes takes its time."""


@pytest.fixture(scope="module")
def several(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Reasoner, Reasoner]]:
    """The target over two processes, the draft's steps from a third, the judge in this
    one; and all of it here. The target has two layers: every layer is two exchanges
    between its processes."""
    folder = tmp_path_factory.mktemp("several")
    target = write_checkpoint(folder / "target", seed=1, layers=2, heads=(4, 2))
    draft = write_checkpoint(folder / "draft", seed=2)
    names, how = (
        (target, draft, "judge"),
        {"dtype": torch.float64, "judge": "tiny-judge"},
    )
    with (
        Reasoner(*names, **how, device={"target": ["cpu", "cpu"]}) as apart,
        Reasoner(*names, **how) as here,
    ):
        yield apart, here


@pytest.mark.parametrize("way", SPECULATING, ids=lambda way: " ".join(way.values()))
def test_real_runs_with_models_in_several_processes(
    several: tuple[Reasoner, Reasoner], way: dict
) -> None:
    """The tokens and origins are those of one process (fp64), whoever proposes,
    whatever decides."""
    drivers = ["overlapped", "lockstep"] if way["mode"] == "lr+sd" else ["lockstep"] * 2
    seen = []
    for reasoner, driver in zip(several, drivers, strict=True):
        result = reasoner.generate(QUESTION, driver=driver, **SHORT, **way)
        seen.append([(step.tokens, step.origin) for step in result.steps])
    assert result.stats.rounds.drafted > 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "verifier", ["oracle", "exact", "random:0.5", "likelihood:-3", "score:4"]
)
def test_verifiers_read_models_in_several_processes(
    several: tuple[Reasoner, Reasoner], verifier: str
) -> None:
    """Verifiers that ask the target ask all of its ranks."""
    seen = []
    for reasoner, driver in zip(several, ("overlapped", "lockstep"), strict=True):
        models, codec = reasoner.models, reasoner.codec
        made = VerifierChoice(verifier, codec, dtype=torch.float64).build(models.target)
        options = make_options(mode="lr", driver=driver, **SHORT)
        run = Run(reasoner.engine, made, QUESTION, options)
        seen.append([(step.tokens, step.origin) for step in run.finish().steps])
    assert seen[0] == seen[1]


def test_the_second_device_raises_where_two_devices_meet() -> None:
    with SecondDevice():
        far, near = torch.ones(2, device=ELSEWHERE), torch.ones(2)
        assert far.device == (far + 1).device == near.to(ELSEWHERE).device == ELSEWHERE
        assert (far.cpu() + near).tolist() == [2, 2]
        for mixing in (
            lambda: far + near,
            lambda: torch.stack([near, far]),
            lambda: far[near > 0],
        ):
            with pytest.raises(RuntimeError, match="on xla and on the CPU"):
                mixing()


BABBLE: dict = {"segmenter": "fixed", "segment_tokens": 4, "max_tokens": 14}
CASES = [
    *((role, "random:0.5", way) for role in ("target", "draft") for way in SPECULATING),
    *(
        (role, "judge", {"mode": "lr", "width": 2})
        for role in ("target", "draft", "judge")
    ),
    *(
        ("target", name, {"mode": "lr"})
        for name in ("exact", "likelihood:-3", "score:4")
    ),
]


@pytest.fixture(scope="module")
def placed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str | None], Reasoner]:
    """Reasoners with this verifier, and with this role (None: nothing) on the second
    device."""
    folder = tmp_path_factory.mktemp("checkpoints")
    folders = [write_checkpoint(folder / str(seed), seed=seed) for seed in (1, 2)]

    @cache
    def made(verifier: str, role: str | None) -> Reasoner:
        models: list[CausalLM] = []

        def loaded(*names: Path, **how: Any) -> CausalLM:
            models.append(load(*names, **how))
            return models[-1]

        where = dict.fromkeys(("target", "draft", "judge"), torch.device("cpu"))
        where |= {role: ELSEWHERE} if role else {}
        judge = folders[1] if verifier == "judge" else None
        names, how = (
            (folders[0], folders[0], verifier),
            {"judge": judge, "dtype": torch.float64},
        )
        with pytest.MonkeyPatch.context() as patch:
            for module in ("lr.reasoner", "lr.engine.verifiers"):
                patch.setattr(f"{module}.load_model", loaded)
            reasoner = Reasoner(*names, device=where, **how)
        assert [model.device for model in models].count(ELSEWHERE) == (role is not None)
        return reasoner

    return made


@pytest.mark.parametrize(
    ("role", "verifier", "way"), CASES, ids=lambda one: str(one).replace("'", "")
)
def test_one_model_on_a_second_device(
    placed: Callable[[str, str | None], Reasoner], role: str, verifier: str, way: dict
) -> None:
    """The steps are those of one device, and nothing of the one meets anything of the
    other."""
    expected = placed(verifier, None).generate(QUESTION, **BABBLE, **way).steps
    with SecondDevice():
        found = placed(verifier, role).generate(QUESTION, **BABBLE, **way).steps
    assert [(s.tokens, s.origin) for s in found] == [
        (s.tokens, s.origin) for s in expected
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
@pytest.mark.parametrize("verifier", ["oracle", "judge", "likelihood:-3", "score:4"])
def test_answers_do_not_depend_on_who_is_where(
    places: tuple[str, str], verifier: str
) -> None:
    """The judge stays on the CPU. In fp64 the CPU and CUDA choose alike, rejections
    included."""
    where = {"target": places[0], "draft": places[1], "judge": "cpu"}
    ways: list[dict] = [{"mode": "lr", "width": 2, "depth": 2}]
    ways += [
        {"mode": "lr+sd", "drafter": "step"},
        {"mode": "lr", "driver": "overlapped"},
    ]
    ways += SPECULATING
    if verifier != "oracle":
        ways = ways[:3]
    names = ("tiny-target", "tiny-draft", verifier)
    with (
        Reasoner(*names, dtype=torch.float64, device=where) as apart,
        Reasoner(*names, dtype=torch.float64) as here,
    ):
        for way in ways:
            tokens = [
                one.generate(QUESTION, max_tokens=60, **way).tokens
                for one in (apart, here)
            ]
            assert tokens[0] == tokens[1], way


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nobody_works_on_the_default_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does holds up the others: a draft took three times as long beside such a
    target."""
    streams, poll = {}, StepWriter.poll

    def watched(writer: StepWriter, wait: float | None = 0.0) -> None:
        streams[threading.current_thread().name] = torch.cuda.current_stream()
        poll(writer, wait)

    monkeypatch.setattr(StepWriter, "poll", watched)
    with Reasoner(device="cuda") as reasoner:
        reasoner.generate(QUESTION, mode="lr", driver="overlapped", max_tokens=60)
    default = torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default
    assert len({default, *streams.values()}) == 3


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"draft": []}, "the draft is to be on 0 devices, expected one"),
        ({"judge": ["cpu", "cpu"]}, "the judge is to be on 2 devices, expected one"),
        ({"target": []}, "the target has no device"),
        ({"verifier": "cpu"}, "device has verifier, expected target, draft, judge"),
        ({"draft": "gpu"}, "device is 'gpu', expected"),
    ],
)
def test_devices_that_make_no_sense(device: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DeviceMap.of(device)


@pytest.mark.parametrize("role", ["draft", "judge"])
def test_no_model_goes_to_the_gpu_of_another_rank(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cuda` is the first GPU, and that of this process may be any."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    for target, other in (
        (["cuda:0", "cuda:1"], "cuda:1"),
        (["cuda:1", "cuda"], "cuda:0"),
    ):
        message = f"the {role} is to be on {other}, where another process runs a rank of the target"
        with pytest.raises(SettingError, match=f"{message}.* or {target[0]}, which"):
            DeviceMap.of({"target": target, role: other})
        for fine in (target[0], "cuda:2", "cpu"):
            assert DeviceMap.of({"target": target, role: fine}).ranks == 2
    ranks = [torch.device("cpu")] * 2  # processes on a CPU do not take turns
    assert DeviceMap.of({"target": ranks, role: "cpu"}).ranks == 2
