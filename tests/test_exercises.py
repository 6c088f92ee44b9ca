"""The exercises of `notebooks/exercises` and their grader: solutions are praised, empty
exercises say what to write, collected mistakes fail and are named, and so are a
student's wrong answers.
"""

import sys

import pytest
from tests_root import ROOT, python

FOLDER = ROOT / "notebooks" / "exercises"
NAMES = sorted(path.stem for path in (FOLDER / "solutions").glob("*.py"))


OTHER_ANSWERS = {
    "residual": [
        ({"min(1.0, p / q)": "1.0 if p >= q else p / q",
          "(p - q).clamp(min=0)": "(p - q).relu()"}, "Well done!"),
        ({"min(1.0, p / q)": "p / q"}, "has to stay with probability 1")
    ],
    "block_verification": [
        ({"(w[i] * p_rows[i] - q_rows[i]).clamp(min=0)": "(p_rows[i] * w[i] - q_rows[i]).relu()",
          "endings[::-1]": "list(reversed(endings))"}, "Well done!"),
        ({"reversed(range(n))": "range(n)"}, "✗")
    ],
    "copy_on_write": [
        ({"table.room > 0": "table.length % table.block_size",
          "(more + must_copy)": "(more + bool(must_copy))"}, "Well done!"),
        ({"count > 0 and ": ""}, "count = 0 writes nothing")
    ],
    "accept_rule": [
        ({"        if aligned is None:\n            return Decide.WAIT\n        if aligned:\n"
          "            return number\n": "        if aligned is not False:\n"
          "            return number if aligned else Decide.WAIT\n"}, "Well done!"),
        ({"Decide.CORRECT if target_ready and not drafts_to_come else Decide.WAIT":
          "Decide.CORRECT"}, "Hint: A verdict that is None is not known yet; only False rejects. "
          "And the target's step can be taken once it is there")
    ],
    "controller": [
        ({"self.hits = 0.5": "self.hits = 1.0", "self.trials = 1.0": "self.trials = 2.0"},
         "Well done!"),
        ({"return max(1, sync_best_k": "return 9 * max(1, sync_best_k"}, "from 0 to 6")
    ],
    "verifier": [
        ({"    return meaning(draft) == meaning(target)":
          "    return draft == target or not meaning(draft) != meaning(target)"}, "Well done!"),
        ({"meaning(draft) == meaning(target)": "True"}, "aligned accepts")
    ],
    "fit": [
        ({"np.zeros(1 + scaled.shape[1])": "np.full(1 + scaled.shape[1], 0.1)",
          "0.5 * weights": "0.1 * weights"}, "Well done!"),
        ({"return minimize(loss, np.zeros(1 + scaled.shape[1])).x":
          "return np.zeros(1 + scaled.shape[1])"}, "is off by")
    ]
}  # fmt: skip
"""By exercise: another right answer, and a wrong one that is not collected, as changes of
the solution; and what the grader says."""


@pytest.fixture(scope="module")
def grader():
    """The module `grade`, which looks for its neighbours in its own folder."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    import grade

    yield grade
    sys.path[:] = before


def report(grader, name, path):
    """All that the grader says."""
    return "\n".join(grader.grade(name, path, hint=True))


@pytest.fixture
def report_on(grader, tmp_path):
    """All that the grader says about this source."""

    def report_on(name, source):
        path = tmp_path / f"{name}.py"
        path.write_text(source, "utf-8")
        return report(grader, name, path)

    return report_on


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_is_praised_and_leads_on(grader, name):
    lines = report(grader, name, FOLDER / "solutions" / f"{name}.py")
    assert "✗" not in lines and "Well done!" in lines
    names = [*grader.EXERCISES, "07_prototype_a_variant"]
    assert names[names.index(name) + 1] in lines.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_exercise_says_what_to_write(grader, name):
    lines = report(grader, name, FOLDER / f"{name}.py")
    assert f"in notebooks/exercises/{name}.py" in lines and "behaves like" not in lines


@pytest.mark.parametrize("name", NAMES)
def test_known_mistakes_fail_and_are_named(grader, report_on, name):
    mistakes = grader.MISTAKES[name]
    assert len(mistakes) == 2
    for mistake in mistakes:
        lines = report_on(name, mistake.source(name))
        assert lines.count("✗") == 1 and len(lines.splitlines()) <= 14
        assert f"Your answer behaves like: {mistake.name} — " in lines
        assert lines.splitlines()[-1].startswith("Hint: ")


@pytest.mark.parametrize("name", NAMES)
def test_other_answers_are_graded_for_what_they_do(grader, report_on, name):
    for changes, sentence in OTHER_ANSWERS[name]:
        source = grader.Mistake("", "", changes).source(name)
        assert sentence in report_on(name, source)


@pytest.mark.parametrize(
    "source, sentence",
    [
        ("def accept_prob(p, q):\n    return p / 0\ndef residual(p, q):\n    return p\n",
         "Your code raised ZeroDivisionError in line 2, `return p / 0`: float division by zero"),
        ("def accept_prob(p, q:\n", "Python cannot read line 1 of residual.py"),
        ("def residual(p, q):\n    return p\n", "residual.py has no accept_prob"),
        ("import missing_package\n", "a file that Python can read\n\nYour code raised Module"),
        ("def accept_prob(p, q):\n    return p / q if p < q else 1\n"
         "def residual(p, q):\n    return 1 * p\n", "behaves like: redraws from p — ")
    ]
)  # fmt: skip
def test_an_error_or_a_mistake_in_other_words_is_a_sentence(
    report_on, source, sentence
):
    assert sentence in report_on("residual", source)


def test_an_endless_loop_is_a_sentence(grader, report_on, monkeypatch):
    monkeypatch.setattr(grader, "SECONDS", 1)
    endless = "def accept_prob(p, q):\n    while True:\n        pass\n"
    assert "It took more than 1 seconds" in report_on("residual", endless)


def test_the_command_line_has_no_traceback_and_names_the_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def accept_prob(p, q):\n    return [][0]\n", "utf-8")
    done = python(FOLDER / "grade.py", "residual", "--file", path, cwd=ROOT)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "IndexError in line 2" in done.stdout and f"--file {path}" in done.stdout
