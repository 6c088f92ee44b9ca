"""`docs/theory.md` says what the code computes."""

from __future__ import annotations

import re

from tests_root import ROOT

from lr.theory import acceptance, asynchronous, hybrid, synchronous

PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_example_prints_what_its_comments_say(capsys) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "theory.md", "exec"), {})
    printed = [float(word) for word in capsys.readouterr().out.split()]
    comments = " ".join(re.findall(r"# ([\d. ]+)", example))
    for number, text in zip(printed, comments.split(), strict=True):
        assert abs(number - float(text)) < 1e-5


def test_every_function_of_the_table_exists() -> None:
    modules = acceptance, asynchronous, hybrid, synchronous
    rows = PAGE.split("| formula |")[1].splitlines()[2:]
    cells = [row.split("|")[2] for row in rows if row.startswith("|")]
    names = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert len(names) > 25
    assert all(any(hasattr(module, name) for module in modules) for name in names)
