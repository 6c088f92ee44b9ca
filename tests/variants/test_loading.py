"""`--variant`: names, files, modules and parameters; every command that takes it; what
is wrong is said; `lr new variant`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from reasoner_kit import write_checkpoint

from lr.commands.cli import main
from lr.errors import LRError, SettingError
from lr.reasoner import Reasoner
from lr.registry import load_file
from lr.spec.variant import Variant
from lr.spec.verifiers.base import ExactVerifier, Pair
from lr.types import Origin, Verdict
from lr.variants import loading
from lr.variants.loading import is_named, load_variant
from lr.watch.trace.file import read_trace
from lr.watch.trace.replay import replay

QUESTION = "At first Ann has 7 coins. Then Ben gets 3 more coins than Ann. How many coins does Ben have?"
PLUGIN = '''
"""A plugin."""
from lr.spec.segmenters import FixedSegmenter
from lr.spec.variant import Variant
from lr.spec.verifiers.base import Verifier
from lr.types import Verdict


class Longer(Verifier):
    name = "longer"

    def __init__(self, least=3):
        self.least = least

    def judge(self, pairs):
        return [Verdict(len(p.draft.tokens) >= self.least, "counted") for p in pairs]


class Broken(Longer):
    def judge(self, pairs):
        return [1 / 0 for p in pairs]


def fives(token_bytes):
    return FixedSegmenter(token_bytes, 5)


def mine(reasoner, least=3):
    return Variant(Longer(least), segmenter=fives, settings={"depth": 2, "max_tokens": 40})


fixed = Variant(Longer(0))
nothing = 7


def fails():
    raise ValueError("no such luck")
'''


@pytest.fixture(scope="module")
def reasoner() -> Iterator[Reasoner]:
    with Reasoner() as made:
        yield made


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "plugin.py"
    file.write_text(PLUGIN)
    return file


def test_files_modules_and_parameters(
    reasoner: Reasoner, plugin: Path, tmp_path: Path
) -> None:
    made = load_variant(f"{plugin}:mine(least=9)", reasoner)
    assert made.verifier.least == 9 and made.file == str(plugin)  # type: ignore[union-attr]
    assert load_variant(f"{plugin}:Longer(least=4)", reasoner).verifier.least == 4
    assert load_variant(f"{plugin}:fixed", reasoner).verifier.least == 0  # type: ignore[union-attr]
    assert (
        load_variant("lr.variants.best_of:best_of( width = 2 )", reasoner).settings[
            "width"
        ]
        == 2
    )
    narrow = load_variant("narrowing(widths=(2, 1))", reasoner)
    assert narrow.settings == {"width": 2, "depth": 4}
    name = f"{plugin}:mine(least=9)"
    assert (
        is_named(name)
        and is_named("best_of")
        and not is_named("verifier=Longer, router=Mine")
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonesuch", "there is no variant 'nonesuch'; there are specreason"),
        ("no/such/file.py:mine", "there is no file no/such/file.py"),
        ("no.such.module:mine", "there is no module 'no'"),
        ("FILE:missing", "has no 'missing'; it has .*Longer"),
        ("FILE:mine(most=3)", "unexpected keyword argument 'most'. It takes .least=3."),
        ("FILE:mine(3)", "each with its name"),
        ("FILE:mine(least=)", "values are numbers, texts, tuples"),
        ("FILE:mine(least=open('x'))", "values are numbers, texts, tuples"),
        ("FILE:nothing", "is 7, expected a lr.spec.variant.Variant"),
        ("FILE:fails", "Traceback.*plugin.py.*no such luck"),
        ("a b", "expected a name, file.py:name"),
        ("FILE:fixed(least=3)", "takes no parameters"),
    ],
)
def test_what_is_wrong_is_said(
    reasoner: Reasoner, plugin: Path, name: str, said: str
) -> None:
    with pytest.raises(SettingError, match=f"(?s){said}"):
        load_variant(name.replace("FILE", str(plugin)), reasoner)


def test_the_settings_of_a_variant_give_way_to_the_callers(
    reasoner: Reasoner, plugin: Path
) -> None:
    variant = load_variant(f"{plugin}:mine", reasoner)
    run = reasoner.run(QUESTION, variant=variant)
    assert (run.options.depth, run.options.max_tokens) == (2, 40)
    assert reasoner.run(QUESTION, variant=variant, depth=3).options.depth == 3
    assert reasoner.run(QUESTION, variant=variant, depth=4).options.depth == 4, (
        "the default, too"
    )
    with pytest.raises(
        SettingError, match=r"a name in Variant\.settings is 'deepness'"
    ):
        reasoner.run(QUESTION, variant=Variant(settings={"deepness": 2}))


def test_a_mode_that_is_given_wins_over_the_one_of_a_variant(
    reasoner: Reasoner,
) -> None:
    variant = Variant(settings={"mode": "sd"})
    assert reasoner.run(QUESTION, variant=variant).options.mode == "sd"
    assert reasoner.run(QUESTION, variant=variant, mode="lr").options.mode == "lr"
    with pytest.raises(
        SettingError, match="mode 'lr' makes no use of the variant's drafter and r"
    ):
        reasoner.run(QUESTION, variant=load_variant("traversal", reasoner), mode="lr")


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_a_variant_that_would_do_nothing_is_refused(
    reasoner: Reasoner, mode: str
) -> None:
    with pytest.raises(
        SettingError, match=f"mode '{mode}' makes no use of the variant's verifier"
    ):
        reasoner.run(QUESTION, variant=load_variant("best_of", reasoner), mode=mode)
    lookup = Variant(drafter=lambda runner, sampling: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(SettingError, match="makes no use of the variant's drafter"):
        reasoner.run(QUESTION, variant=lookup, mode="lr")


def test_the_worker_loads_the_file_too(reasoner: Reasoner, plugin: Path) -> None:
    variant = load_variant(f"{plugin}:mine", reasoner)
    here = reasoner.generate(QUESTION, variant=variant, seed=3)
    there = reasoner.generate(QUESTION, variant=variant, seed=3, driver="overlapped")
    assert here.tokens == there.tokens and len(here.steps) > 3
    assert {len(step.tokens) for step in here.steps[:-1]} == {5}


def test_a_part_of_the_script_that_runs_is_told_where_to_go(reasoner: Reasoner) -> None:
    import __main__
    from lr.spec.segmenters import FixedSegmenter

    class Threes(FixedSegmenter):
        pass

    Threes.__module__, Threes.__qualname__ = "__main__", "Threes"
    __main__.Threes = Threes  # type: ignore[attr-defined]
    with pytest.raises(SettingError, match="defined in the script that is run"):
        reasoner.generate(
            QUESTION, variant=Variant(segmenter=Threes), driver="overlapped"
        )


@pytest.mark.usefixtures("short_answers")
def test_commands_take_it(
    plugin: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = f"{plugin}:mine(least=2)"
    assert main(["generate", QUESTION, "--variant", mine, "--trace", "mine.jsonl"]) == 0
    trace = read_trace(tmp_path / "mine.jsonl")
    assert trace.header.variant == mine and trace.header.depth == 2
    assert replay(trace) is None
    assert main(["play", QUESTION, "--variant", mine, "-o", "mine.html"]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("n\nno move\nz\n"))
    assert main(["step", QUESTION, "--variant", mine]) == 0
    run = ["run", "--dataset", "tiny:1", "--variant", mine, "--output", "out"]
    assert main(run) == 0
    assert '"variant"' in (tmp_path / "out" / "run.json").read_text()
    bench = ["bench", "step", "--dataset", "tiny", "--problems", "1", "--repeats", "2"]
    assert main([*bench, "--only", "nothing such", "--variant", mine]) == 0
    said = capsys.readouterr()
    assert "lr, " in said.out and "longer" not in said.err
    assert main(["experiment", "width", "--variant", mine]) == 2
    assert "only experiment speedup" in capsys.readouterr().err


def test_lr_new_variant_writes_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "variant", "my_method"]) == 0
    assert (
        pytest.main(
            ["-q", "-p", "no:cacheprovider", str(tmp_path / "test_my_method.py")]
        )
        == 0
    )
    capsys.readouterr()
    assert (
        main(
            ["generate", QUESTION, "--variant", "my_method.py:my_method(threshold=-9)"]
        )
        == 0
    )
    assert main(["new", "variant", "my_method"]) == 2
    assert main(["new", "variant", "My-Method"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_plugins_exception_keeps_its_traceback_and_names_the_extension_point(
    reasoner: Reasoner, plugin: Path
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        reasoner.generate(QUESTION, variant=load_variant(f"{plugin}:Broken", reasoner))
    assert caught.traceback[-1].path == plugin or "plugin.py" in str(
        caught.traceback[-1].path
    )
    assert caught.value.__notes__ == [
        "This was raised in the variant's verifier, Broken."
    ]
    assert not isinstance(caught.value, LRError)


class Noteless(Exception):
    """It takes no notes."""

    def add_note(self, note: str) -> None:
        raise TypeError("no notes")


@pytest.mark.parametrize("error", [Noteless(), ValueError("the very same object")])
def test_a_note_hides_no_exception_and_stands_there_once(
    reasoner: Reasoner, error: Exception
) -> None:
    class Raising(ExactVerifier):
        def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
            raise error

    for _ in range(2):
        with pytest.raises(type(error)):
            reasoner.generate(QUESTION, variant=Variant(Raising()))
    assert len(getattr(error, "__notes__", [])) == isinstance(error, ValueError)


def test_a_random_checkpoint_needs_no_judge(tmp_path: Path) -> None:
    """The scorer of a real checkpoint asks for a digit; of a tiny one, the judge."""
    target = write_checkpoint(tmp_path / "target", seed=1, layers=2)
    draft = write_checkpoint(tmp_path / "draft", seed=2)
    with Reasoner(target, draft, "exact") as made:
        variant = load_variant("speculative_thinking", made)
        result = made.generate(
            QUESTION, variant=variant, max_tokens=30, segmenter="sentence"
        )
        assert all(
            step.origin is not Origin.BONUS or step.tokens for step in result.steps
        )


def test_an_installed_package_brings_variants(
    reasoner: Reasoner, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("theirs", "their_package:mine", loading.GROUP)
    monkeypatch.setattr(
        loading, "entry_points", lambda group: {loading.GROUP: [point]}[group]
    )
    monkeypatch.setitem(sys.modules, "their_package", load_file(plugin))
    made = load_variant("theirs(least=5)", reasoner)
    assert made.verifier.least == 5 and made.name == "theirs(least=5)"  # type: ignore[union-attr]
    with pytest.raises(SettingError, match=r"there are specreason.*, theirs"):
        load_variant("nonesuch", reasoner)
