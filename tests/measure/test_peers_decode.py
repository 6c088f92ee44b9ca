"""`scripts/peers/decode.py`: the contenders write the same tokens, and what is counted."""

import json

import torch
from peers.decode import contenders, main

from lr.reasoner import Reasoner
from lr.tiny.language import Split, problem

QUESTIONS = [problem(Split.TEST, number).question for number in range(2)]


def test_all_contenders_write_the_same_tokens():
    """Ours and those of transformers, with and without speculation (greedy, fp64)."""
    with Reasoner("tiny-draft", "tiny-draft", dtype=torch.float64) as reasoner:
        ways = contenders(reasoner, "tiny-draft", "tiny-draft", 30, 3)
        answers = {way.name: way.answer(QUESTIONS[0], 1) for way in ways}
        batch = ways[0].answer(QUESTIONS[0], 2)
    assert len(answers) == 6
    [plain] = answers["lr"]
    assert all(answer == [plain] for answer in answers.values())
    assert len(plain) == 30 and batch == [plain, plain]


def test_the_command(tmp_path, capsys):
    words = "--problems 1 --repeats 2 --tokens 8 --batches 1 2"
    assert main([*words.split(), "--json", str(tmp_path / "d.json")]) == 0
    assert "assisted" in capsys.readouterr().out
    content = json.loads((tmp_path / "d.json").read_text())
    assert [len(content[f"batch {rows}"]) for rows in (1, 2)] == [6, 4]
    assert main("--repeats 1".split()) == 2
