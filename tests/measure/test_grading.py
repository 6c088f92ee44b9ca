"""Reading the answer out of a text, comparing it, and what degenerate texts cost.

The files beside this one hold the pairs: `answers.jsonl` ours, judged by a person;
`math_verify.jsonl` those of the tests of Math-Verify 0.9.0 (huggingface/Math-Verify,
tests/*.py), long replies cut to their end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lr.measure.answers import chosen_letter
from lr.measure.datasets import Item, Task, gold_answer
from lr.measure.grading import Grader, MathChecker, plain_number
from lr.result import boxed, reply

HERE = Path(__file__).parent


def rows(name: str) -> list[dict]:
    lines = HERE.joinpath(name).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(checker=MathChecker(30)) as grader:
        yield grader


def is_right(grader: Grader, gold: str, text: str) -> bool | None:
    return grader.grade(Item(0, "?", Task.MATH, gold), text).right


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in rows("answers.jsonl")}))
def test_answers_are_equal_where_a_person_says_so(grader: Grader, kind: str) -> None:
    for row in rows("answers.jsonl"):
        if row["kind"] == kind:
            equal, _ = grader.checker.compare(row["gold"], row["answer"])
            assert equal is row["equal"], row


def test_the_pairs_of_math_verify(grader: Grader) -> None:
    """No wrong answer is right. The right ones that are wrong: numbers with a decimal
    comma, two that need a tolerance of a hundredth, two that are not LaTeX."""
    pairs = rows("math_verify.jsonl")
    wrong = [
        row
        for row in pairs
        if is_right(grader, gold_answer(row["gold"]), row["reply"]) is not row["equal"]
    ]
    assert all(row["equal"] for row in wrong), wrong
    assert len(pairs) > 230 and len(wrong) <= 8, wrong


# --- An answer without a box, or with several ---

RIGHT = [
    ("So it is 12, as required.", "12"),
    ("The answer is 12, an even number.", "12"),
    ("The answer is −5.", "-5"),
    ("**Final Answer:**\n\n4", "4"),
    ("the result is 3 * 20 = 60.", "60"),
    (r"The answer is $\frac{1}{2}$ of it.", r"\frac{1}{2}"),
    ("#### **73**", "73"),
    ("#### 73 residents", "73"),
    ("The answer is not 10 but 12", "12"),
    ("not 10 but 12", "12"),
    ("The answer is\n\\[\n5\n\\]", "5"),
    ("The answer is:\n\\[\n\\frac{1}{2}\n\\]", r"\frac{1}{2}"),
    ("It costs $29.00.", "29"),
    ("**73**", "73"),
    ("It is 1,080", "1080"),
    ("#### -3", "-3"),
    (r"The answer is \$9,500", "9500"),
    (r"\boxed{$9{,}500$}", "9500"),
    ("The answer is 12, not 10.", "12"),
    ("The answer is 12 because 3 * 4 = 12 and 5 > 2", "12"),
    ("She sold 48 + 24 = 72", "72"),
    ("She sold 48 + 24 = 72 clips. Let me know if you have questions!", "72"),
    ("The solutions are x = 3 and x = -1.", "3,-1"),
    ("The answers are $3$ and $-1$.", "3,-1"),
    ("Janet makes $18 every day.", "18"),
    ("She makes 9 * 2 = $18 per day at the market.", "18"),
    ("She has $5 and he has $7.", "7"),
    ("The answer is $7$.", "7"),
    ("### Final Answer\n\n7", "7"),
    ("## Answer\n\n**7**", "7"),
    ("Answer: 7\n\nExplanation: 3+4 = 7, and 10 - 3 = 7 with 2 steps", "7"),
    ("Answer\n7", "7"),
    ("The answer is Evelyn.", r"\text{Evelyn}"),
    ("**Answer:** Evelyn\n", r"\text{Evelyn}"),
    ("The answer is 12. I am sure the answer is correct.", "12"),
    ("So the answer is twelve, 12.", "12"),
    ("The answer is 45 000.", "45000"),
    ("The answer is 45,000 dollars", "45000"),
    ("The answer is .5", "0.5"),
    ("The answer is 0.5.", "0.5"),
    ("The answer is 1,000,000.", "1000000"),
    ("The answer is 3/4.", "3/4"),
    (r"The answer is \frac{3}{4}.", "3/4"),
    ("The answer is 2x + 1.", "2x+1"),
    ("The answer is x^2 + 2x + 1", "x^2+2x+1"),
    ("The answer is (3, 4).", "(3,4)"),
    ("The answer is [0, 1).", "[0,1)"),
    ("The answer is 2√3.", r"2\sqrt{3}"),
    (r"The answer is 2\sqrt{3} cm.", r"2\sqrt{3}"),
    ("**Step 1:** 2+3=5\n\n**Step 2:** done", "5"),
    ("#### Step 3: Compute\n9*2 = 18", "18"),
    ("#### 1. Find\nblah 9*2 = 18", "18"),
    ("9*2=18\n#### 18", "18"),
    (r"#### \frac{1}{2}", r"\frac{1}{2}"),
    ("#### 1/2", "1/2"),
    ("#### $18", "18"),
    ("####18", "18"),
    ("#### 1,080", "1080"),
    (r"\boxed{5} is the answer, so the answer is 5.", "5"),
    (r"x=\boxed{3} and x=\boxed{-8}", "3,-8"),
    (r"\boxed{3}, \boxed{-8}", "3,-8"),
    (r"the answer is \boxed{2}. wait, actually \boxed{3}", "3"),
    (r"3*4=\boxed{12}, so the total is \boxed{24}", "24"),
    ("\\boxed{5}\n\n\\boxed{5}", "5"),
    ("We get \\boxed{4}.\n\nAfter a check: \\boxed{5}", "5"),
    (
        r"The probability is \boxed{\frac{1}{5}}. Final Answer: The final answer is $20\%$.",
        "20",
    ),
    (r"\boxed{28}. Note that the result is 3 times 9 plus 1.", "28"),
    ("The answer is 6 (2 times 3).", "6"),
    ("The answer is 6 since 2*3 = 6 = 12/2.", "6"),
    ("The answer is $10.50", "10.5"),
    ("The answer is 25%.", "25"),
    ("The answer is: 25 %", "25"),
    ("The answer is: x = 5", "5"),
    ("The answer is $x = 5$.", "5"),
    ("The answer is -7.", "-7"),
    ("The answer is $-7$", "-7"),
    ("The answer is -$7", "-7"),
    ("The answer is 1e5", "1e5"),
    ("`7`", "7"),
    ("The answer is `7`.", "7"),
    ("The answer is 2^10.", "2^{10}"),
    ("The answer is 2**10 = 1024.", "1024"),
    ("The answer is 4!", "4"),
    (r"The final answer is: $\boxed{8}$", "8"),
    ("The answer is 12:30.", "12:30"),
    ("The ratio is 3:4", "3:4"),
    ("The area is 15 cm².", "15"),
    ("The area is 15 m^2.", "15"),
    ("The answer is 15 cm^2.", "15"),
    (r"The answer is $15\text{ cm}^2$.", "15"),
    ("The answer is ½.", "1/2"),
    ("The answer is 3½.", "7/2"),
    ("The answer is 3 1/2.", "7/2"),
    ("The answer is $x<4$.", "x<4"),
    ("The answer is x < 4.", "x<4"),
    ("The answer is x < 4.", r"(-\infty,4)"),
    ("The answer is Monday", "Monday"),
    ("The answer is 100 degrees.", "100"),
    ("The answer is 100°.", "100"),
    ("5", "5"),
    (" 5.0 ", "5"),
    ("the answer is 7th", "7"),
    ("The train goes 60~km.", "60"),
    (r"$0.\overline{6}$", "2/3"),
    ("Therefore, x equals 3.", "3"),
    ("So x = **3**.", "3"),
    ("So x = __3__.", "3"),
    ("*3*", "3"),
    ("The answer is\r\n\r\n5\r\n", "5"),
    (r"\boxed 2", "2"),
    (r"$\boxed 2$", "2"),
    (
        r"The answer is $\begin{pmatrix} 1 \\ 2 \end{pmatrix}$.",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    ),
    ("Answer: The three of them have 3 left.", "3"),
    ("The answer is 120 thousand.", "120000"),
    ("The answer is 2.5 million dollars.", "2.5e6"),
]
WRONG = [
    ("The answer is −5.", "5"),
    ("The answer is 5 or 6.", "5"),
    ("The answer is x^2 + 2x + 1", "1"),
    ("The answer is (4, 3).", "(3,4)"),
    ("The answer is [0,1].", "[0,1)"),
    (r"The answer is 2\sqrt{3} cm.", "3"),
    (r"3*4=\boxed{12}, so the total is \boxed{24}", "12"),
    ("The total is $10.50, i.e. 10 dollars and 50 cents", "10.5"),
    ("The answer is 4!", "24"),
    ("Final answer: 8 apples, 3 of them green", "8"),
    ("The answer is on.", "no"),
    (
        "The answer is\n\\[\n\\begin{pmatrix} 1 \\\\ 3 \\end{pmatrix}\n\\]",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    ),
    ("The answer is 5 apples and the change is 3 dollars", "5"),
]


@pytest.mark.parametrize(("text", "gold"), RIGHT)
def test_the_answer_is_found_and_right(grader: Grader, text: str, gold: str) -> None:
    assert is_right(grader, gold, text), grader.grade(
        Item(0, "?", Task.MATH, gold), text
    )


@pytest.mark.parametrize(("text", "gold"), WRONG)
def test_no_other_number_is_taken(grader: Grader, text: str, gold: str) -> None:
    assert is_right(grader, gold, text) is False


LETTERS = [
    ("The answer is B, since", "B"),
    ("(B), because", "B"),
    (r"\boxed{\mathbf{B}}", "B"),
    (r"\boxed{$B$}", "B"),
    (r"\boxed{Option B}", "B"),
    ("Answer: $B$", "B"),
    (r"Answer: \(B\)", "B"),
    ("**Final Answer:**\n\n**B**", "B"),
    ("The correct option is B.", "B"),
    ("The answer is I think ...", None),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{\textbf{(B)} 12}", "B"),
    (r"\boxed{B: blue}", "B"),
    ("(B)", "B"),
    ("**B**", "B"),
    ("Answer: A\nAnswer: B", "B"),
    (r"\boxed{D. red}", "D"),
    ("The answer is (A).", "A"),
    ("so\n\nB", "B"),
    (r"\boxed{4}", None),
    ("B is wrong, C too", None),
    (r"\boxed{BC}", None),
    ("A lot of people think so", None),
    ("The answer is A lot of", None),
    ("I think it is unclear.", None),
    ("The answer is B because a car moves.", "B"),
    ("Answer: None of the above", None),
    ("ANSWER: Don't know", None),
    ("ANSWER: **A**", "A"),
    ("Answer: It is not B, the answer is D", "D"),
    ("Answer: D, not B", "D"),
    ("The calculated answer is 11.\n\nAnswer seems to be A.\n\nAnswer: A", "A"),
    ("\\boxed{\\langle H\\rangle \\ll \\Delta E}\n\n**Answer: D**", "D"),
    ("The answer is option (C).", "C"),
    ("The answer is **C**.", "C"),
    ("The answer is **C. red**", "C"),
    ("C. red", "C"),
    ("A. red\nB. green\nC. blue", None),
    ("I considered (A), but it is incorrect. Final answer: D.", "D"),
    ("The correct answer is (d).", "D"),
    (r"\boxed{c}", "C"),
    ("Option B is correct.", "B"),
    ("Therefore, (B) is the correct answer.", "B"),
    ("The best choice is\n\n**(C)** red", "C"),
    ("The answer is A or B.", None),
    ("The answer is A, B and C", None),
    (r"\boxed{A, B}", None),
    (r"\boxed{E: A polygenic risk score}", None),
    (r"\boxed{D: A polygenic risk score}", "D"),
    ("The answer is\n\\[\n\\boxed{B}\n\\]", "B"),
    (r"**Answer:** \textbf{(B)}", "B"),
    ("Answer: A", "A"),
    ("Answer:\nA", "A"),
    ("Answer - A", None),
    ('The answer is "B".', "B"),
    ("The answer is 'B'", "B"),
    ("The answer is `B`", "B"),
    ("The answer is <B>", None),
    ("The answer is B) green", "B"),
    ("A", "A"),
    ("A because it is red", "A"),
    ("A car", None),
    ("The answer is A", "A"),
    ("B. Because A is not valid", "B"),
    ("The answer: B!", "B"),
    ("Correct answer: **B**", "B"),
    ("answer is b", "B"),
    ("The correct choice: D", "D"),
    (r"\boxed{\text{Option } C}", "C"),
    (r"\boxed{\mathrm{(C)}\ 5}", "C"),
    (r"\boxed{(\text{B})}", "B"),
    (r"\boxed{\textbf{B}.}", "B"),
    (r"$\boxed{\mathbf{(B)}\ \text{blue}}$", "B"),
    (r"\boxed{A} or \boxed{B}", None),
    (r"Final Answer: The final answer is $\boxed{B}$. I hope it is correct.", "B"),
    ("The answer is C\n\nExplanation: A is red", "C"),
    ("The answer is Dr. Smith", None),
    ("The answer is D's", None),
]


@pytest.mark.parametrize(("text", "letter"), LETTERS)
def test_letters_are_chosen_and_never_taken_out_of_a_sentence(
    text: str, letter: str | None
) -> None:
    chosen = chosen_letter(text, "ABCD")
    assert (chosen.text if chosen else None) == letter


BOXES = [
    (r"so \boxed{42}.", "42"),
    (r"\boxed{1} no, \boxed{ 2 }", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{a{b{c}}d}e}", "a{b{c}}d"),
    (r"\boxed{7} and then \boxed{8", "7"),
    (r"\boxed{5} as asked, in \boxed{}", "5"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{a\}b}", r"a\}b"),
    (r"$\boxed 42$.", "42"),
    (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
    (r"the \boxed command", None),
    (r"\\boxed{840}.", "840"),
    (r"\boxed{a\\}", "a\\\\"),
    ("42", None),
    ("", None),
    (r"\boxed{", None),
    (r"\boxed{\boxed{3}}", "3"),
]


@pytest.mark.parametrize(("text", "expected"), BOXES)
def test_the_last_whole_box_counts(text: str, expected: str | None) -> None:
    assert boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\\boxed{1}</think>\\boxed{2}", "\\boxed{2}"),
        ("no thought", "no thought"),
        ("a</think>b</think>c", "c"),
        ("<think>cut off", "<think>cut off"),
    ],
)
def test_the_thought_is_left_aside(text: str, expected: str) -> None:
    assert reply(text) == expected


# --- Degenerate texts ---


@pytest.mark.parametrize(
    "piece",
    [r"\boxed{", r"\boxed{1} and ", r"\boxed 2 ", "{", "\\", "$", "1", "1,", "1 ",
     "the answer is ", "answer: 5, ", "**", "#### ", "(1, ", "- ", "is B. ", "\n\n", r"\[ "],
)  # fmt: skip
@pytest.mark.parametrize("task", [Task.MATH, Task.CHOICE])
def test_a_model_that_repeats_itself_costs_no_time(
    grader: Grader, piece: str, task: Task
) -> None:
    item = Item(0, "?", task, "A", ("x", "y"))
    grader.checker.compare("x", "y")  # the process has started
    started = time.process_time()
    grader.grade(item, piece * 100_000)
    assert time.process_time() - started < 1


def test_a_comparison_that_never_ends_is_killed_and_the_next_one_works() -> None:
    with closing(MathChecker(1.5)) as checker:
        assert checker.compare(r"\frac{1}{2}", "0.5")[0]
        equal, why = checker.compare("9^{9^{9^{9}}}", "1")
        assert not equal and "1.5 s" in why
        assert checker.compare(r"\frac{1}{2}", "0.5")[0]


def test_the_thread_that_asked_first_may_end() -> None:
    """An evaluation grades in a thread of its own, and an experiment has one after
    another."""
    with closing(MathChecker(20)) as checker:
        for _ in range(2):
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(checker.compare, r"\frac{1}{2}", r"\frac{2}{4}")
                assert answer.result()[0]


def test_a_worker_that_dies_costs_one_answer(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("print('{\"ready\": true}', flush=True)\ninput()\n", "utf-8")
    with closing(MathChecker(20, worker=script)) as checker:
        for _ in range(2):
            assert not checker.compare("x", "y")[0]


# --- Grades ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("073", 73), ("-3", -3), ("1{,}000", 1000), (r"45\,000", 45000), ("1.", 1), (".5", 0.5),
     ("2.5E-1", 0.25), (r"3\cdot10^4", 30000), (r"2.5 \text{ million dollars}", 2_500_000),
     ("1,2", None), ("1,00,0", None), ("32, 349", None), ("50%", None), (r"\frac12", None),
     ("", None), ("--3", None), ("1e9999", None), ("9" * 2000, None)],
)  # fmt: skip
def test_plain_numbers(text: str, value: float | None) -> None:
    assert plain_number(text) == value


def test_what_could_not_be_graded_is_told_apart(grader: Grader) -> None:
    choice = Item(0, "?", Task.CHOICE, "B", ("x", "y"))
    assert grader.grade(choice, r"\boxed{B}").right is True
    assert grader.grade(choice, r"\boxed{A}").right is False
    assert grader.grade(choice, r"\boxed{C}").answer is None, "there is no option C"
    assert grader.grade(Item(0, "?", Task.FREE), "anything").right is None
    lost = grader.grade(Item(0, "?", Task.MATH, "4"), "hm")
    assert (lost.right, lost.answer) == (False, None) and "no answer" in lost.why
    assert "gold" in grader.checker.compare("", "5")[1]
