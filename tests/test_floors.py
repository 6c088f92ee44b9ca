"""The floors of the house: a module imports from its own floor and from those below, never from above, never in a circle.

    floor 0   the words every room uses; the standard library only
    floor 1   logic without tensors; runs, and is tested, where there is no torch
    floor 2   tensors: cache, model, sampling, verifiers
    floor 3   what puts the parts together: runner, reference loop, reasoner, evaluation, pictures
    floor 4   what a person starts: the command line with its commands

A module that is new stands in no table yet, and the first test below says so. Choose the lowest floor it can live on.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from source_tree import ROOT, Module, imports_of, modules_below

FLOORS = {
    # A name ending in ".*" is a whole room of one floor; an exact name wins over it, a longer room over a shorter.
    0: ["lr", "lr.types", "lr.errors", "lr.rng", "lr.trace", "lr.tracing.*"],
    1: [
        *["lr.kvcache", "lr.kvcache.pool", "lr.kvcache.table", "lr.kvcache.append", "lr.kvcache.branch"],
        "lr.kvcache.watch",
        *["lr.model", "lr.model.config", "lr.parallel"],
        *["lr.spec", "lr.spec.steps", "lr.spec.eligibility", "lr.spec.limits", "lr.spec.runner"],
        *["lr.spec.scheduler", "lr.spec.schedule", "lr.spec.commands", "lr.spec.tree", "lr.spec.outbox"],
        *["lr.spec.window", "lr.spec.segmenters.*", "lr.spec.seams"],
        *["lr.spec.verifiers", "lr.spec.verifiers.base"],
        "lr.theory.*",
        *["lr.endpoint", "lr.endpoint.address", "lr.endpoint.http", "lr.endpoint.completions", "lr.endpoint.probe"],
        *["lr.endpoint.settings", "lr.endpoint.failures", "lr.endpoint.abilities"],
        *["lr.tiny", "lr.tiny.language", "lr.tiny.grammar", "lr.tiny.oracle", "lr.tiny.names", "lr.tiny.report"],
        *["lr.tiny.pairs", "lr.tiny.agreement", "lr.tiny.languages", "lr.tiny.plans.*"],
        *["lr.options", "lr.result", "lr.eval", "lr.eval.answers", "lr.eval.signatures"],
        *[
            "lr.eval.items",
            "lr.eval.layouts",
            "lr.eval.datasets",
            "lr.eval.prompts",
            "lr.eval.store",
            "lr.eval.statistics",
        ],
        *[
            "lr.eval.equality",
            "lr.eval.math_worker",
            "lr.eval.sandbox",
            "lr.eval.jail",
            "lr.eval.grading",
            "lr.eval.spans",
        ],
        *["lr.eval.report", "lr.eval.tables", "lr.eval.figure", "lr.viz", "lr.viz.style"],
        *["lr.engine", "lr.engine.scripted", "lr.engine.simulate", "lr.engine.workers", "lr.engine.chance"],
        *["lr.engine.recording", "lr.engine.virtual", "lr.engine.watching"],
        "lr.engine.virtual_replay",
        *["lr.stepper", "lr.stepper.source", "lr.stepper.script", "lr.stepper.session", "lr.stepper.words"],
        *["lr.engine.transcript", "lr.engine.texts", "lr.engine.room"],
    ],
    2: [
        "lr.kvcache.cache",
        "lr.model.*",
        "lr.parallel.*",
        *["lr.tiny.vocabulary", "lr.tiny.rows", "lr.tiny.muon", "lr.tiny.dense", "lr.tiny.export"],
        "lr.tiny.judge_rows",
        *["lr.spec.sampling", "lr.spec.write", "lr.spec.acceptance", "lr.spec.drafters.*", "lr.spec.token_sd"],
        "lr.spec.round_detail",
        *["lr.spec.verifiers.*", "lr.spec.rules.*", "lr.spec.museum"],
    ],
    3: [
        *[
            "lr.engine.runner",
            "lr.engine.speculation",
            "lr.engine.verification",
            "lr.engine.lockstep",
            "lr.engine.judging",
            "lr.engine.crowd",
            "lr.engine.overlapped",
            "lr.engine.drafts",
            "lr.engine.plan",
            "lr.engine.chain",
            "lr.engine.answer",
            "lr.engine.casting",
            "lr.engine.launch",
            "lr.parallel.start",
            "lr.engine.remote",
            "lr.engine.draft_messages",
            "lr.engine.draft_worker",
            "lr.engine.needs",
            "lr.engine.placement",
            "lr.engine.process",
            "lr.engine.process_run",
            "lr.engine.replay",
            "lr.engine.traced",
            "lr.engine.replay",
        ],
        *["lr.spec.reference", "lr.endpoint.*"],
        *["lr.tiny.training", "lr.tiny.checks", "lr.tiny.evaluate", "lr.tiny.real_pairs", "lr.tiny.judge_eval"],
        "lr.reasoner",
        *["lr.eval.*", "lr.viz.*", "lr.variants.*", "lr.stepper.*"],
    ],
    4: ["lr.cli", "lr.commands.*", "lr.bench.*", "lr.__main__"],
}
KEPT_APART = [("lr.kvcache", "lr.model"), ("lr.spec", "lr.model")]
"""(room, room it never imports): the cache serves any model; speculation speaks to a protocol that the runner satisfies."""
HEAVY = ("torch", "transformers", "numpy")
CALCULATES = "lr.theory"
"""The one room below the tensors that may use numpy: its formulas take arrays."""

MODULES = modules_below("lr")
NAMES = {module.name for module in MODULES}
IMPORTS = {module.name: imports_of(module, NAMES) for module in MODULES}


def floor_of(name: str) -> int | None:
    """The floor of a module, or None where the table does not know it."""
    matches = []
    for floor, entries in FLOORS.items():
        for entry in entries:
            room = entry.removesuffix(".*")
            if entry == name:
                return floor
            if entry != room and (name == room or name.startswith(room + ".")):
                matches.append((len(room), floor))
    return max(matches)[1] if matches else None


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def own_imports(name: str) -> set[str]:
    return {other for other in IMPORTS[name] if inside(other, "lr")}


def at_most(floor: int) -> list[Module]:
    return [module for module in MODULES if floor_of(module.name) in range(floor + 1)]


def test_the_table_itself() -> None:
    assert floor_of("lr.model.config") == 1  # the exact name wins over the room "lr.model.*"
    assert floor_of("lr.model.attention") == 2
    assert floor_of("lr.model") == 1
    assert floor_of("lr.kvcache.shiny_new_thing") is None
    assert floor_of("lr.modelling") is None
    assert {"lr.types", "lr.kvcache.pool", "lr.model.qwen"} <= NAMES, "the walk over the sources finds too little"


def test_imports_are_read_wherever_they_stand(tmp_path) -> None:
    path = tmp_path / "table.py"
    path.write_text(
        "from .pool import A\nfrom . import cache\ndef f():\n    from lr.model import qwen\n    import torch.nn\n"
    )
    known = {"lr.kvcache.pool", "lr.kvcache.cache", "lr.model.qwen"}
    assert imports_of(Module("lr.kvcache.table", path), known) == {*known, "torch.nn"}

    package = tmp_path / "__init__.py"
    package.write_text(
        "import json\nif TYPE_CHECKING:\n    import torch\ndef __getattr__(name):\n    import transformers\n"
    )
    assert imports_of(Module("lr", package), known) == {"json"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_module_has_a_floor(name: str) -> None:
    assert floor_of(name) is not None, f"{name} is new: give it a floor in FLOORS of tests/test_floors.py"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_nobody_imports_from_a_floor_above(name: str) -> None:
    floor = floor_of(name)
    above = [other for other in own_imports(name) if (floor_of(other) or 0) > (floor if floor is not None else 9)]
    assert not above, f"{name} stands on floor {floor} and imports from above: {sorted(above)}"


@pytest.mark.parametrize(("room", "stranger"), KEPT_APART)
def test_rooms_that_do_not_know_each_other(room: str, stranger: str) -> None:
    crossings = [
        f"{name} imports {other}"
        for name in NAMES
        if inside(name, room)
        for other in own_imports(name)
        if inside(other, stranger)
    ]
    assert not crossings


def test_no_circles() -> None:
    """Depth first; a module met again while it is still open closes a circle."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"imports in a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in done and name in NAMES:
            for other in sorted(own_imports(name) - {name}):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(NAMES):
        visit(name, ())


@pytest.mark.parametrize("module", at_most(0), ids=lambda module: module.name)
def test_the_ground_floor_needs_the_standard_library_only(module: Module) -> None:
    foreign = {other.split(".")[0] for other in IMPORTS[module.name]} - set(sys.stdlib_module_names) - {"lr"}
    assert not foreign


@pytest.mark.parametrize("module", at_most(1), ids=lambda module: module.name)
def test_imports_without_torch(module: Module) -> None:
    """In a process of its own, where nothing else can have imported torch before."""
    heavy = tuple(name for name in HEAVY if name != "numpy" or not inside(module.name, CALCULATES))
    script = f"import sys, {module.name}; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split(), f"importing {module.name} drags in {done.stdout.split()}"


def test_transformers_gives_the_tokenizer_and_nothing_of_the_model() -> None:
    """But for `lr/eval` and the commands, which may time other people's models against ours, and the sentence encoder of a verifier."""
    for module in at_most(3):
        if inside(module.name, "lr.eval") or module.name == "lr.spec.verifiers.encoder":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
                assert all("Token" in alias.name for alias in node.names), f"{module.name}: {ast.unparse(node)}"
            elif isinstance(node, ast.Import):
                whole = [alias.name for alias in node.names if alias.name.split(".")[0] == "transformers"]
                assert not whole, f"{module.name} imports {whole}: name the tokenizer classes instead"
