"""Models on several devices: what the draft's worker shares with this process, and that
answers are the same wherever target, draft and judge are.
"""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lr import Reasoner
from lr.engine.verifiers import VerifierChoice
from lr.errors import SettingError
from lr.model.device import DeviceMap
from lr.spec.variant import Variant
from lr.spec.write import StepWriter

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"


def test_a_worker_thread_on_shared_weights_answers_as_lockstep():
    """What one GPU for both does, on the CPU: the thread and the target's loop use one
    model object at the same time.
    """
    with Reasoner() as reasoner:
        engine = replace(reasoner.engine, worker=None, names={})
        assert engine.worker.as_thread
        reasoner.engine = engine
        assert engine.worker.load()[0].model is engine.draft_model
        settings = {"mode": "lr+sd", "drafter": "draft", "max_tokens": 120}
        tokens = {
            reasoner.generate(QUESTION, driver=driver, **settings).tokens
            for driver in ("overlapped", "lockstep")
        }
    assert len(tokens) == 1


SPECULATING = [
    {"mode": "sd", "drafter": "draft", "acceptance": "block"},
    {"mode": "lr+sd", "drafter": "ngram", "acceptance": "block", "schedule": "sync"},
    {"mode": "lr+sd", "drafter": "tree", "acceptance": "reject"},
]
"""In the last ones the draft's steps come from a process of their own where the driver
is overlapped."""
SHORT = {"segmenter": "fixed", "segment_tokens": 4, "max_tokens": 16, "depth": 2}
"""Four steps, whatever is said: a pass of several processes takes its time."""


@pytest.fixture(scope="module")
def several(target, draft):
    """The target over two processes, the draft's steps from a third, the judge in this
    one; and all of it here. The target has two layers: every layer is two exchanges
    between its processes."""
    models = {"target": target, "draft": draft, "judge": "tiny-judge"}
    models["dtype"] = torch.float64
    with (
        Reasoner(**models, device={"target": ["cpu", "cpu"]}) as apart,
        Reasoner(**models) as here,
    ):
        yield apart, here


@pytest.mark.parametrize(
    "way",
    [
        *SPECULATING,
        *({"mode": "lr", "verifier": name} for name in ("likelihood:-3", "score:4")),
    ],
    ids=lambda way: " ".join(way.values()),
)
def test_answers_do_not_depend_on_the_number_of_processes(several, way):
    """The tokens and origins are those of one process (fp64), whoever proposes,
    whatever decides; verifiers that ask the target ask all of its ranks."""
    options = dict(way)
    name = options.pop("verifier", "exact")
    drivers = ["lockstep"] * 2 if way["mode"] == "sd" else ["overlapped", "lockstep"]
    answers = []
    for reasoner, driver in zip(several, drivers, strict=True):
        verifier = VerifierChoice(name, reasoner.codec).build(
            reasoner.engine.target_model
        )
        if way["mode"] != "sd":
            options["variant"] = Variant(verifier)
        result = reasoner.generate(QUESTION, driver=driver, **SHORT, **options)
        answers.append([(step.tokens, step.origin) for step in result.steps])
    assert (result.stats.rounds.drafted > 0) == (way["mode"] != "lr")
    assert answers[0] == answers[1]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no shared memory here")
@pytest.mark.parametrize("draft", ["tiny-draft", "int4:tiny-draft"])
@pytest.mark.parametrize("room", [0, 1 << 40])
def test_the_drafts_process_reads_the_weights_that_are_here(draft, room, monkeypatch):
    """If shared memory has room for them; else it loads the checkpoint, and does not
    see what has changed here."""
    usage = SimpleNamespace(free=room)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    settings = {"mode": "lr", "temperature": 0.0, "max_tokens": 30}
    with Reasoner("tiny-target", draft, "always") as reasoner:
        reasoner.engine.draft_model.norm.weight.zero_()  # it writes nonsense
        here = reasoner.generate(QUESTION, **settings).stats
        there = reasoner.generate(QUESTION, driver="overlapped", **settings).stats
    assert here.accepted == 0 and (there.accepted == 0) == (room > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
@pytest.mark.parametrize("verifier", ["oracle", "judge", "likelihood:-3", "score:4"])
def test_answers_do_not_depend_on_who_is_where(places, verifier):
    """The judge stays on the CPU. In fp64 the CPU and CUDA choose alike, rejections
    included."""
    device = {"target": places[0], "draft": places[1], "judge": "cpu"}
    names = ("tiny-target", "tiny-draft", verifier)
    with (
        Reasoner(*names, dtype=torch.float64, device=device) as apart,
        Reasoner(*names, dtype=torch.float64) as here,
    ):
        for way in (*SPECULATING, {"mode": "lr", "driver": "overlapped"}):
            tokens = [
                reasoner.generate(QUESTION, max_tokens=60, **way).tokens
                for reasoner in (apart, here)
            ]
            assert tokens[0] == tokens[1], way


@pytest.mark.gpu
def test_nobody_works_on_the_default_stream(monkeypatch):
    """Whoever does holds up the others: a draft took three times as long beside such a
    target."""
    streams = {}
    poll = StepWriter.poll

    def watched(writer):
        streams[threading.current_thread().name] = torch.cuda.current_stream()
        poll(writer)

    monkeypatch.setattr(StepWriter, "poll", watched)
    with Reasoner(device="cuda") as reasoner:
        reasoner.generate(QUESTION, mode="lr", driver="overlapped", max_tokens=60)
    default = torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default
    assert len({default, *streams.values()}) == 3


@pytest.mark.parametrize(
    "device, noun",
    [
        ({"judge": ["cpu", "cpu"]}, "judge"),
        ({"target": []}, "target"),
        ({"verifier": "cpu"}, "verifier"),
        ({"draft": "gpu"}, "device"),
        # a GPU where another process runs a rank of the target
        ({"target": ["cuda:0", "cuda:1"], "draft": "cuda:1"}, "rank"),
        ({"target": ["cuda:1", "cuda:0"], "judge": "cuda:0"}, "rank"),
    ],
)
def test_impossible_devices_are_refused(device, noun, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: None)
    with pytest.raises(SettingError, match=noun):
        DeviceMap.of(device)
