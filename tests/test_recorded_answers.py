"""Recorded answers: every later version must give the same tokens and the same origins.

Each case is one call of `Reasoner.generate` in fp64, with a tiny target of two layers
(`reasoner_kit.load_small`) or with random models; most share forwards
(`shared_forwards.py`). `python tests/test_recorded_answers.py` records them anew. Do
that only where a change of the answers is intended, and say in the commit which and
why.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoner_kit import load_small, with_loader
from safetensors.torch import load_file, save_file
from shared_forwards import with_shared_forwards

from lr.model.files import resolve
from lr.reasoner import Reasoner

RECORD = Path(__file__).with_name("recorded_answers.json")
QUESTIONS = (
    "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?",
    "At first Cleo has 4 apples. Then Dan gets twice as many apples as Cleo. Then "
    "Cleo gives 2 apples to Dan. "
    "How many apples does Dan have?",
)


def cases() -> list[dict[str, Any]]:
    """What is asked: the pair of models, the verifier, the number of the question, and
    the options. Every value of an option occurs, and most pairs of values that meet in
    the code.
    """
    found: list[dict[str, Any]] = []

    def add(
        verifier: str = "oracle", question: int = 0, pair: str = "tiny", **options: Any
    ) -> None:
        found.append(
            {
                "pair": pair,
                "verifier": verifier,
                "question": question,
                "options": options,
            }
        )

    for temperature, question in product((0.0, 0.6), (0, 1)):
        add(mode="ar", temperature=temperature, question=question, seed=1)
    schedules = ("sync", "paper", "depth")
    for schedule, depth, width, verifier in (
        *(("sync", 1, 1, "oracle"), ("sync", 3, 2, "random:0.6")),
        *(("paper", 1, 2, "random:0.6"), ("paper", 3, 1, "oracle")),
        *(("depth", 1, 1, "random:0.6"), ("depth", 3, 2, "oracle")),
    ):
        how = {"mode": "lr", "schedule": schedule, "depth": depth, "width": width}
        add(verifier, **how, temperature=0.6, seed=depth)
    for schedule, verifier in (
        *product(
            ("sync", "depth"), ("judge", "likelihood", "score")
        ),  # which read models
        *(("depth", "exact"), ("sync", "always"), ("depth", "never")),
    ):
        how = {"mode": "lr", "schedule": schedule, "depth": 2, "width": 2}
        add(verifier, **how, temperature=0.6, seed=5, question=1)
    for i, schedule in enumerate(schedules):
        how = {"mode": "lr", "schedule": schedule}
        add(**how, depth=3, width=3, max_target_rows=2, temperature=0.9, seed=7)
        for half in (True, False) if schedule == "depth" else (i == 0,):
            add(
                **how,
                depth=2,
                max_step_tokens=9,
                ignore_half_sentence=half,
                temperature=0.6,
            )
        if i < 2:
            cut = {"segmenter": ("sentence", "fixed")[i], "segment_tokens": 6}
            add("random:0.7", **how, depth=2, **cut, seed=2)
    for drafter, rule in (  # the others: in mode lr+sd
        *product(("ngram", "suffix", "draft"), ("block",)),
        *(
            ("suffix", "reject"),
            ("suffix", "match"),
            ("ngram", "match"),
            ("draft", "reject"),
        ),
        ("tree", "reject"),
    ):
        add(
            mode="sd",
            drafter=drafter,
            acceptance=rule,
            temperature=0.6,
            seed=3,
            question=1,
        )
    for (i, drafter), j in product(
        enumerate(("ngram", "draft", "tree", "step")), (0, 1)
    ):
        how = {
            "acceptance": ("reject", "match")[j],
            "schedule": ("sync", "depth")[(i + j) % 2],
        }
        add(mode="lr+sd", drafter=drafter, **how, depth=2, temperature=0.6, seed=4)
    add(
        mode="lr+sd",
        drafter="draft",
        acceptance="reject",
        depth=3,
        width=2,
        temperature=0.0,
    )
    for mode in ("lr", "lr+sd"):
        add(mode=mode, coupling="shared", depth=3, temperature=0.8, seed=6)
        add(mode=mode, driver="overlapped", depth=3, temperature=0.6, seed=8)
    ways = [(mode, "depth", t) for mode in ("ar", "sd") for t in (0.0, 1.0)]
    for (j, mode), (i, schedule) in product(
        enumerate(("lr", "lr+sd")), enumerate(schedules)
    ):
        ways.append((mode, schedule, float((i + j) % 2)))
    for mode, schedule, temperature in ways:
        add(
            "random:0.7", pair="random", mode=mode, schedule=schedule, depth=2, width=2,
            acceptance="match", temperature=temperature, segmenter="fixed",
            segment_tokens=5, max_tokens=48,
        )  # fmt: skip
    return found


def make_random_pair(folder: Path) -> tuple[Path, Path]:
    """A target and a draft with the shapes and the tokenizer of the tiny family, and
    random weights.
    """
    made = []
    for seed, name in enumerate(("tiny-target", "tiny-draft")):
        made.append(folder / name)
        shutil.copytree(resolve(name), made[-1])
        weights, generator = (
            load_file(made[-1] / "model.safetensors"),
            torch.Generator().manual_seed(seed),
        )
        drawn = {
            key: 0.5 * torch.randn(weights[key].shape, generator=generator)
            for key in sorted(weights)
        }
        save_file(drawn, made[-1] / "model.safetensors")
    return made[0], made[1]


def answer(reasoner: Reasoner, case: dict[str, Any]) -> dict[str, str]:
    """One answer, short enough to be kept: a hash of its tokens, where its steps come
    from, and how it begins.
    """
    result = reasoner.generate(QUESTIONS[case["question"]], **case["options"])
    tokens = hashlib.blake2b(
        json.dumps(result.tokens).encode(), digest_size=8
    ).hexdigest()
    return {
        "tokens": tokens,
        "steps": " ".join(step.origin.value for step in result.steps),
        "text": result.text[:60],
    }


def label(case: dict[str, Any]) -> str:
    options = "-".join(f"{name}={value}" for name, value in case["options"].items())
    return f"{case['pair']}-{case['verifier']}-{case['question']}-{options}"


Reasoners = dict[tuple[str, str], Reasoner]
"""By the pair of models and the verifier."""


@pytest.fixture(scope="module")
def reasoners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reasoners]:
    """In fp64; all with the same models in memory."""
    pairs = {
        "tiny": ("tiny-target", "tiny-draft"),
        "random": make_random_pair(tmp_path_factory.mktemp("random")),
    }
    made: Reasoners = {}
    with pytest.MonkeyPatch.context() as patch:
        load = cache(load_small)
        patch.setattr("lr.engine.loading.load_model", load)
        for pair, verifier in sorted(
            {(case["pair"], case["verifier"]) for case in cases()}
        ):
            judge = "tiny-judge" if verifier == "judge" else None
            made[pair, verifier] = Reasoner(
                *pairs[pair], verifier, judge=judge, dtype=torch.float64
            )
    yield made
    for reasoner in made.values():
        reasoner.close()


def answers(
    reasoners: Reasoners, chosen: Sequence[dict[str, Any]]
) -> dict[str, dict[str, str]]:
    """The answers of the chosen cases. They share forwards, except where a second
    process drafts or a verifier looks into the model.
    """
    jobs = {
        label(case): partial(answer, reasoners[case["pair"], case["verifier"]], case)
        for case in chosen
    }
    alone = {
        label(case)
        for case in chosen
        if case["verifier"] in ("likelihood", "score")
        or case["options"].get("driver") == "overlapped"
    }
    loaded = [reasoner.engine for reasoner in reasoners.values()]
    models = {model for each in loaded for model in (each.target, each.draft) if model}
    shared = {name: job for name, job in jobs.items() if name not in alone}
    made = dict(
        zip(shared, with_shared_forwards(models, list(shared.values())), strict=True)
    )
    return made | {name: jobs[name]() for name in alone}


@pytest.mark.parametrize("mode", ["ar", "sd", "lr", "lr+sd"])
def test_answers_are_those_recorded(mode: str, reasoners: Reasoners) -> None:
    recorded = json.loads(RECORD.read_text())
    now = answers(
        reasoners, [case for case in cases() if case["options"]["mode"] == mode]
    )
    assert now == {name: recorded[name] for name in now}


def on_page() -> list[dict[str, Any]]:
    """The recorded cases that the page `lr/lookahead.py` can run. The proposals of
    drafter "step" depend on how far the draft is, and with a rule other than "match" so
    do the tokens.
    """
    timed = {"drafter": "step", "acceptance": "reject"}
    return [
        case
        for case in cases()
        if case["options"]["mode"].startswith("lr")
        and case["options"].get("driver") != "overlapped"
        and not timed.items() <= case["options"].items()
        and case["verifier"].startswith(("oracle", "exact", "random"))
    ]


def test_the_page_gives_the_recorded_answers(reasoners: Reasoners) -> None:
    """Token for token and origin for origin what the engine answered, on trained and on
    random models, with every drafter, rule, segmenter and schedule.
    """
    recorded = json.loads(RECORD.read_text())
    chosen = on_page()
    assert len(chosen) > 30
    paged = [
        {**case, "options": {**case["options"], "engine": "page"}} for case in chosen
    ]
    made = answers(reasoners, paged)
    assert list(made.values()) == [recorded[label(case)] for case in chosen]


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, with_loader(load_small):
        pair = make_random_pair(Path(folder))
        record = {}
        for case in cases():
            target, draft = (
                pair if case["pair"] == "random" else ("tiny-target", "tiny-draft")
            )
            judge = "tiny-judge" if case["verifier"] == "judge" else None
            with Reasoner(
                target, draft, case["verifier"], judge=judge, dtype=torch.float64
            ) as reasoner:
                record[label(case)] = answer(reasoner, case)
        RECORD.write_text(json.dumps(record, indent=0) + "\n")
