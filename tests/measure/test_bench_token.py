"""The token-level benchmarks: what they count, how they compare, and that both commands
run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from scipy import stats

from lr.commands.bench import verdict
from lr.commands.cli import main
from lr.errors import SettingError
from lr.measure.bench.alpha import Places, by_place, point, standard_error
from lr.measure.bench.report import in_turn
from lr.measure.bench.token import Answerer, counted, measure, rows
from lr.rng import Stream, uniform
from lr.theory.synchronous import sd_tokens
from lr.tiny.language import Split, problem
from lr.trace import Stats, TokenRound, TokenRounds
from lr.types import Role


def rounds(*accepted: int, depth: int = 2) -> list[TokenRound]:
    return [TokenRound(Role.TARGET, 0, depth, depth, n, n + 1) for n in accepted]


def by_place_of(places: Places) -> tuple[list[int], ...]:
    return places.offered.tolist(), places.tried.tolist(), places.kept.tolist()


def test_places_of_a_few_rounds() -> None:
    """The example of the docstring, and a round that was cut to one draft."""
    places = Places.of(rounds(2, 1, 0), 2)
    assert by_place_of(places) == ([3, 3], [3, 2], [2, 1])
    assert (
        places.rates == [2 / 3, 1 / 2] and places.alpha == 3 / 5 and places.length == 2
    )
    short = Places.of(rounds(1, depth=1), 2)
    both = Places.total([places, short])
    assert (both.rounds, both.emitted) == (4, 8)
    assert by_place_of(both) == ([4, 3], [4, 2], [3, 1])


def test_places_agree_with_the_trace() -> None:
    some = [*rounds(2, 1, 0, 0, 2), *rounds(1, 0, depth=1)]
    places, known = Places.of(some, 2), TokenRounds.of(some)
    assert places.alpha == known.conditional_acceptance
    assert places.length == known.mean_acceptance_length
    beyond = [sum(known.histogram[i:]) for i in range(1, len(known.histogram))]
    assert list(places.kept) == beyond and places.rounds == known.count


def test_rates_of_the_same_rounds_give_the_measurement_back() -> None:
    """Why the rates by place are taken from other problems."""
    places = Places.of([*rounds(2, 1, 0, 0, 2), *rounds(1, depth=1)], 2)
    assert places.predict(places.rates) != places.length, (
        "short proposals: the places no longer see the same rounds"
    )
    full = Places.of(rounds(2, 1, 0, 0, 2), 2)
    assert full.predict(full.rates) == pytest.approx(full.length)
    assert full.predict([full.alpha] * 2) == pytest.approx(sd_tokens(full.alpha, 2))


def problems(count: int, k: int, rate: Callable[[int, int], float]) -> list[Places]:
    """Rounds in which place i of problem n is accepted with rate(n, i)."""
    made = []
    for n in range(count):
        accepted = []
        for i in range(40):
            stream = Stream.root(3).fold_in(n, i)
            accepted.append(
                next(
                    (
                        place
                        for place in range(k)
                        if uniform(stream.key(place)) >= rate(n, place)
                    ),
                    k,
                )
            )
        made.append(Places.of(rounds(*accepted, depth=k), k))
    return made


def test_a_constant_rate_is_predicted_and_a_falling_one_only_by_place() -> None:
    even = point(4, problems(60, 4, lambda n, i: 0.7))
    assert even.alpha == pytest.approx(0.7, abs=0.02) and even.cut == 0
    assert all(abs(gap) < 4 for gap in even.gaps)
    falling = point(4, problems(60, 4, lambda n, i: 0.9 - 0.25 * i))
    assert falling.gaps[0] > 4 > abs(falling.gaps[1]), (
        "a good first place counts for more than the mean of all"
    )
    assert falling.rates == pytest.approx([0.9, 0.65, 0.4, 0.15], abs=0.06)


def test_the_error_counts_problems_not_rounds() -> None:
    """Problems that differ widen it; for a mean over problems of equal size it is the
    textbook's.
    """
    parts = problems(30, 3, lambda n, i: 0.2 if n % 2 else 0.9)
    lengths = [part.length for part in parts]
    mixed = point(3, parts)
    assert mixed.error == pytest.approx(float(stats.sem(lengths)))
    alike = problems(30, 3, lambda n, i: 0.55)
    assert mixed.error > 2 * point(3, alike).error
    assert standard_error(lambda some: 1.0, parts) == 0
    assert Places.total(alike).constant == pytest.approx(by_place(alike), rel=0.05)


def test_passes_of_the_other_side() -> None:
    """The example of the docstring."""
    answer = counted(1.0, 10, 6, [13, 4, 1])
    assert (answer.target_passes, answer.rounds.count, answer.rounds.drafted) == (
        3,
        2,
        6,
    )
    assert answer.rounds.accepted == 3 and answer.token_acceptance == 0.5
    assert (
        answer.rounds.mean_acceptance_length == 2.5
        and answer.tokens_per_target_pass == 2
    )
    assert counted(1.0, 10, 3, [10, 1, 1]).token_acceptance is None


def test_everybody_answers_in_turn_and_is_compared_within_a_problem() -> None:
    asked: list[tuple[str, int]] = []

    def scripted(side: str, name: str, kind: str, seconds: float) -> Answerer:
        """A contender whose speed is given."""

        def answer(question: str, temperature: float, seed: int) -> Stats:
            assert question == problem(Split.TEST, seed).question and temperature == 0.6
            asked.append((name, seed))
            return Stats(seconds * (1 + seed), tokens=100, target_passes=50)

        return Answerer(side, name, kind, answer)

    field = [
        scripted("lr", "ar", "plain", 1.0),
        scripted("transformers", "generate", "plain", 2.0),
        scripted("lr", "draft", "draft model", 0.5),
        scripted("transformers", "slow", "draft model", 0.8),
        scripted("transformers", "fast", "draft model", 0.4),
    ]
    made = measure(field, [0.6], 3)
    names = [one.name for one in field]
    assert [name for name, number in asked if number == 3] == names, (
        "the warm-up, dropped"
    )
    assert [name for name, number in asked if number == 1] == [*names[1:], names[0]]
    ar, generate, draft, *_ = made
    assert ar.rates == pytest.approx((100, 50, 100 / 3)) and ar.total.tokens == 300
    assert (
        generate.to_plain.median == generate.to_plain.low == 0.5
        and generate.peer is None
    )
    assert (
        ar.peer == "generate"
        and ar.to_peer is not None
        and ar.to_peer.median == 2
        and not ar.behind
    )
    assert (
        draft.peer == "fast"
        and draft.to_peer is not None
        and draft.to_peer.median == pytest.approx(0.8)
    )
    assert (
        draft.behind
        and "NOT ahead" in verdict(made)
        and "draft at temperature 0.6" in verdict(made)
    )
    assert "in every row" in verdict([ar, generate])
    assert made[0].figures()["tokens_per_target_pass"] == 2


def test_in_turn() -> None:
    assert [in_turn(range(3), n) for n in range(4)] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [0, 1, 2],
    ]
    assert rows([], 0.6, []) == []


@pytest.mark.usefixtures("whole_targets")
def test_bench_token_runs_and_both_sides_do_the_same_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy: everybody writes the same number of tokens; in as many passes as tokens
    where nothing is drafted.
    """
    monkeypatch.setattr("lr.measure.bench.token.MAX_TOKENS", 14)
    path = tmp_path / "token.json"
    assert (
        main(
            [
                "bench",
                "token",
                "--problems",
                "2",
                "--temperature",
                "0",
                "--k",
                "3",
                "--json",
                str(path),
            ]
        )
        == 0
    )
    made = json.loads(path.read_text(encoding="utf-8"))
    assert {row["side"] for row in made["rows"]} == {"lr", "transformers"} and len(
        made["rows"]
    ) == 12
    assert len({row["total"]["tokens"] for row in made["rows"]}) == 1
    for row in made["rows"]:
        assert (row["tokens_per_target_pass"] == 1) == (row["kind"] == "plain")
        assert all(math.isfinite(rate) and rate > 0 for rate in row["rates"])
        assert row["kind"] == "plain" or 0 < row["token_acceptance"] < 1
    assert "temperature 0" in capsys.readouterr().out


def test_bench_alpha_runs_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "bench",
        "alpha",
        "--problems",
        "4",
        "--longest",
        "2",
        "--json",
        str(tmp_path / "alpha.json"),
    ]
    assert main([*arguments, "--figure", str(tmp_path / "figure.png")]) == 0
    made = json.loads((tmp_path / "alpha.json").read_text(encoding="utf-8"))
    first, second = made["points"]
    assert first["measured"] == pytest.approx(1 + first["alpha"], abs=0.02), (
        "one draft: nothing to predict"
    )
    assert 1 < first["measured"] < second["measured"] < 3 and second["error"] > 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "</svg>" in (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "tokens per round" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["token", "--problems", "1"], "problems is 1"),
        (["token", "--k", "0"], "k is 0"),
        (["token", "--temperature", "-1"], "temperature is"),
        (["token", "--json", "nowhere/at/all.json"], "there is no folder"),
        (["alpha", "--problems", "2"], "problems is 2"),
        (["alpha", "--longest", "0"], "longest is 0"),
        (["alpha", "--figure", "nowhere/at/all.png"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_figure_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lr.watch.figures import style

    monkeypatch.setattr(style, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"lookahead-reasoning\[plot\]"):
        style.require_matplotlib()
