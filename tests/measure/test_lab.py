"""Ways to answer, timed side by side: every answer begins as in a fresh process, what
cannot run is refused at the start, and what was measured is kept."""

import pytest

from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.datasets import load_items
from lr.measure.lab import Lab
from lr.measure.models import Models
from lr.measure.store import Store
from lr.measure.ways import Way, in_turn
from lr.options import GenerateOptions
from lr.reasoner import Reasoner

VARIANTS = """
from lr.spec.proposal import EMPTY, Proposal
from lr.spec.segmenters import FixedSegmenter
from lr.spec.token_sd import Drafter
from lr.spec.variant import Variant

SEEN = []  # the tokens of earlier answers


class Echo(Drafter):
    '''Goes on as the last answer did after the same token.'''

    name = "echo"
    shares_state = True

    def propose(self, contexts, k):
        return [self.after(context.tokens[-1], min(k, context.limit)) for context in contexts]

    def after(self, last, k):
        if last not in SEEN or k < 1:
            return EMPTY
        place = SEEN.index(last) + 1
        return Proposal.chain(SEEN[place : place + k])

    def forget(self, branches):
        SEEN[:] = [token for branch in branches for token in branch.tokens]


class Declared(Echo):
    memory = True


class Breaks(Drafter):
    '''Fails in its thirtieth round.'''

    name = "breaks"
    rounds = 0

    def propose(self, contexts, k):
        self.rounds += 1
        if self.rounds == 30:
            raise KeyError("lost")
        return [EMPTY for _ in contexts]


def remembers(reasoner):
    settings = {"acceptance": "match", "drafter": "ngram"}
    return Variant(drafter=lambda setup: Declared(), settings=settings)


def hides(reasoner):
    return Variant(drafter=lambda setup: Echo(), settings={"acceptance": "match"})


def breaks(reasoner):
    return Variant(drafter=lambda setup: Breaks())


def fixed(reasoner):
    return Variant(segmenter=lambda token_bytes: FixedSegmenter(token_bytes, 4))


def fixed_lockstep(reasoner):
    return Variant(
        segmenter=lambda token_bytes: FixedSegmenter(token_bytes, 4),
        settings={"driver": "lockstep"},
    )
"""


@pytest.fixture(scope="module")
def reasoner():
    with Reasoner(verifier="exact") as reasoner:
        yield reasoner


@pytest.fixture
def lab(reasoner, tmp_path):
    """Three answers to each of two questions, at temperature 0, as `lr experiment`
    times them."""
    (tmp_path / "mine.py").write_text(VARIANTS)
    options = GenerateOptions(driver="overlapped", temperature=0.0, max_tokens=60)
    models = Models(lambda _: reasoner)
    return Lab(load_items("tiny:2"), tmp_path, models, options, repeats=3)


def variant(lab, name):
    return Way({"way": name}, variant=f"{lab.work}/mine.py:{name}")


def per_pass(result):
    """Tokens per pass of the target in each answer."""
    records = result.summary.run.records.values()
    return [r["stats"]["tokens"] / r["stats"]["target_passes"] for r in records]


def test_a_memory_gains_nothing_cold_and_has_a_row_of_its_own(lab):
    plain, cold, warm = lab.run([Way.of("ar"), variant(lab, "remembers")])
    assert [r.way.name for r in (cold, warm)] == ["remembers", "remembers,_warm"]
    assert per_pass(plain) == per_pass(cold) == [1.0] * 6
    assert per_pass(warm)[0] == 1.0, "the first answer of all remembers nothing"
    assert max(per_pass(warm)) > 1.5, "the same question again"
    for result in (cold, warm):
        assert any("by sample" in fact for fact in result.summary.facts)


def test_a_memory_does_not_begin_with_the_tokens_of_the_warm_up(lab, tmp_path, cli):
    words = (
        f"run --dataset tiny:1 --n_samples 2 --temperature 0 --output {tmp_path}/run"
    )
    words += f" --variant {tmp_path}/mine.py:remembers --max_tokens_len 200"
    cli(words)
    records = [record for _, record in sorted(Store(tmp_path / "run").results())]
    passes = [r["stats"]["tokens"] / r["stats"]["target_passes"] for r in records]
    assert passes[0] == 1.0 < 1.5 < passes[1]


def test_a_memory_that_is_not_declared_gains_nothing(lab):
    _, hidden = lab.run([Way.of("ar"), variant(lab, "hides")])
    assert per_pass(hidden) == [1.0] * 6


def test_a_warm_row_that_was_cut_off_begins_again(lab):
    ways = [variant(lab, "remembers")]
    _, whole = lab.run(ways)
    (lab.work / "remembers,_warm" / "1.2.json").unlink()
    _, again = lab.run(ways)
    assert per_pass(again) == per_pass(whole)


def test_the_settings_of_a_variant_win_over_those_of_the_lab(lab):
    way = variant(lab, "fixed_lockstep")
    [result] = lab.run([way])
    sizes = [tokens for _, tokens in result.steps[:-1]]
    assert set(sizes) == {4}


def test_what_cannot_run_is_refused_before_anything_is_timed(lab):
    ways = [Way.of("ar"), variant(lab, "fixed")]
    with pytest.raises(SettingError, match="lockstep") as refused:
        lab.run(ways)
    assert "fixed" in refused.value.__notes__[0]
    assert not [*lab.work.rglob("*.json")]


def test_what_was_measured_is_kept_if_a_row_fails(lab):
    ways = [variant(lab, "breaks"), Way.of("ar"), Way.of("lr depth=2")]
    results = lab.run(ways)
    assert [result.way.name for result in results] == ["ar", "lr_depth=2"]
    assert all(len(result.summary.run.records) == 6 for result in results)
    assert [type(error) for error in lab.failures.values()] == [KeyError]


def test_the_command_prints_the_rows_before_it_fails(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(VARIANTS)
    words = "experiment speedup --problems 2 --max_tokens 60 --values ar --variant "
    words += f"{tmp_path}/mine.py:breaks --work {tmp_path}/work --output {tmp_path}/out"
    with pytest.raises(KeyError):
        main(words.split())
    assert "| ar |" in capsys.readouterr().out
    assert (tmp_path / "out" / "speedup.json").is_file()


def test_a_way_is_given_in_words():
    both = Way.of("lr+sd drafter=draft depth=2 verifier=likelihood:-1 variant=adaptive")
    assert (both.mode, both.verifier, both.variant) == (
        "lr+sd",
        "likelihood:-1",
        "adaptive",
    )
    assert both.options == {"drafter": "draft", "depth": 2}
    for words in ("fast", "lr speed=3", "lr depth=0"):
        with pytest.raises(SettingError):
            Way.of(words)


def test_each_way_begins_once():
    assert [in_turn("abc", n) for n in range(3)] == [[*"abc"], [*"bca"], [*"cab"]]
