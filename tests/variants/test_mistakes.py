"""Every deliberate mistake in `mistakes_kit.py` is noticed by whom it says."""

from functools import partial
from pathlib import Path

import mistakes_kit as kit
import pytest
import torch

from lr.commands.check import Check
from lr.errors import LRError
from lr.reasoner import Reasoner
from lr.variants.kit.check import (
    CHECK_QUESTIONS,
    check_answers,
    check_parts,
    idle_parts,
)

CODE = compile(Path(kit.__file__).read_text("utf-8"), kit.__file__, "exec")
KIND = "every value is of the kind that is expected"


@pytest.fixture(scope="module")
def reasoner():
    with Reasoner(dtype=torch.float64) as reasoner:
        yield reasoner


def load(table, name):
    """A mistake from a new run of its file."""
    members = {"__name__": kit.__name__}
    exec(CODE, members)
    return members[table][name]()


def who_notices(make, reasoner):
    """As `lr check` does it."""
    try:
        parts = list(check_parts(make))
        faults = [fault for findings in parts for fault in findings.broken]
        if faults:
            return "REFUSED" if faults[0].startswith(KIND) else "BROKEN"
        answers, results = check_answers(
            make, reasoner, CHECK_QUESTIONS[:2], max_tokens=40
        )
    except LRError:
        return "REFUSED"
    except Exception:
        return "RAISED"
    if answers.broken:
        return "BROKEN"
    remarks = [remark for findings in parts for remark in findings.remarks]
    return "SHOWN" if remarks or idle_parts(make(), results) else "FINE"


def cases(*tables):
    return [(table, name) for table in tables for name in vars(kit)[table]]


@pytest.mark.parametrize(
    "table, name",
    [
        *cases("REFUSED", "RAISED", "FINE"),
        *(
            pytest.param(*case, marks=pytest.mark.ci)
            for case in cases("BROKEN", "SHOWN")
        ),
    ],
)
def test_a_mistake_is_noticed_by_whom_the_table_says(reasoner, table, name):
    noticed = who_notices(partial(load, table, name), reasoner)
    assert noticed == table or (noticed, table) == ("SHOWN", "FINE")


@pytest.mark.parametrize("name", kit.REFUSED)
def test_a_wrong_value_is_refused_in_an_answer_too(reasoner, name):
    with pytest.raises(LRError):  # noqa: PT012
        variant = load("REFUSED", name)
        reasoner.generate(CHECK_QUESTIONS[0], variant=variant, max_tokens=30)


BY_HASH = """
from lr.spec.verifiers.base import Verifier
from lr.types import Verdict


class ByHash(Verifier):
    name = "by hash"

    def judge(self, pairs):
        return [Verdict(hash(str(pair.draft_step.tokens)) % 3 > 0, "x") for pair in pairs]
"""


@pytest.mark.ci
def test_a_verdict_by_a_hash_differs_in_another_process(tmp_path, capsys):
    file = tmp_path / "by_hash.py"
    file.write_text(BY_HASH, "utf-8")
    with pytest.raises(SystemExit):
        Check(f"{file}:ByHash").run()
    [fault] = [
        line for line in capsys.readouterr().out.splitlines() if "BROKEN" in line
    ]
    assert "another process" in fault
    Check("confidence_cascade", max_tokens=10).run()
    assert "green" in capsys.readouterr().out
