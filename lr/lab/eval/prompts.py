"""The text that a model is asked: the question, and how the answer is to be given so that it can be
read.

Each instruction stands here once. Models that speak nothing but the tiny language are asked the
bare question: they know how to answer.
"""

from __future__ import annotations

from lr.lab.eval.items import Item, Task
from lr.lab.eval.layouts import LETTERS

MATH = "Think it through step by step, and put your final answer into \\boxed{}."
CHOICE = "Think it through step by step, and put the letter of the right option into \\boxed{}."
FUNCTION = "Complete this Python code. Give all of it, imports included, in one Python code block."
PROGRAM = "Write a Python program that reads from standard input and writes to standard output. Give all of it in one Python code block."


def ask(item: Item, *, bare: bool = False) -> str:
    """The prompt for an item. `bare`: the question and nothing else."""
    if bare or item.task is Task.FREE:
        return item.question
    if item.task in (Task.MATH, Task.WORD):
        return f"{item.question}\n\n{MATH}"
    if item.task is Task.CHOICE:
        options = "\n".join(
            f"{letter}. {text}" for letter, text in zip(LETTERS, item.choices, strict=False)
        )
        return f"{item.question}\n\n{options}\n\n{CHOICE}"
    if item.starter and item.starter == item.question:
        return f"{FUNCTION}\n\n```python\n{item.starter.rstrip()}\n```"
    if item.starter:
        return f"{item.question}\n\n{FUNCTION}\n\n```python\n{item.starter.rstrip()}\n```"
    return f"{item.question}\n\n{PROGRAM}"
