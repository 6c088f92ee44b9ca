"""The adapter for lm-evaluation-harness: tasks from local files run through it, with
the answers and probabilities that the models give elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lr.errors import SettingError
from lr.measure.datasets import load_items
from lr.model.files import resolve

if importlib.util.find_spec("lm_eval") is None:
    pytest.skip("needs the extra lm-eval", allow_module_level=True)
if TYPE_CHECKING:  # importing it takes a second, in every process that collects tests
    from lr.measure.harness import LookaheadLM

TASK = r"""
task: coins
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}, cache_dir: "{folder}/cache"}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\n\n\n"], max_gen_toks: 300}}
filter_list:
  - {{name: boxed, filter: [{{function: regex, regex_pattern: 'boxed\{{(.*?)\}}'}}]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
CHOICE = r"""
task: which
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}, cache_dir: "{folder}/cache"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: [" At first", " Then", "<|im_end|>"]
doc_to_target: 1
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks over four problems of the tiny language."""
    folder = tmp_path_factory.mktemp("tasks")
    lines = [
        {"question": one.question, "answer": one.gold} for one in load_items("tiny:4")
    ]
    data = folder / "coins.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    for name, text in (("coins", TASK), ("which", CHOICE)):
        (folder / f"{name}.yaml").write_text(
            text.format(data=data, folder=folder), "utf-8"
        )
    return folder


def adapter(**settings: Any) -> LookaheadLM:
    from lr.measure.harness import LookaheadLM

    given = {"target": "tiny-target", "draft": "tiny-draft", "verifier": "oracle"}
    return LookaheadLM(**{**given, "device": "cpu", **settings})


def ask(model: LookaheadLM, *texts: str, **how: Any) -> list[str]:
    return model.generate_until([asked("generate_until", text, how) for text in texts])


def asked(kind: Any, *arguments: Any) -> Any:
    """A request as the harness makes it."""
    from lm_eval.api.instance import Instance

    return Instance(kind, {}, arguments, 0)


def test_tasks_run_and_give_the_figures_of_the_models(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    model = adapter(depth=2, batch_size=3)
    found = simple_evaluate(
        model,
        tasks=["coins", "which"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    assert found is not None
    assert found["results"]["coins"]["exact_match,boxed"] == 1.0
    assert 0 <= found["results"]["which"]["acc,none"] <= 1
    [first, *_] = found["samples"]["coins"]
    prompt = first["arguments"][0][0]
    question = first["doc"]["question"]
    assert prompt == model.apply_chat_template([{"role": "user", "content": question}])
    assert model.codec.encode(prompt) == model.reasoner.codec.chat(question)
    plain = model.reasoner.generate(question, temperature=0, depth=2)
    assert [plain.text] == first["resps"][0]


@pytest.mark.usefixtures("whole_targets")
def test_probabilities_are_those_of_transformers() -> None:
    from transformers import AutoModelForCausalLM

    model = adapter(draft=None, verifier=None, batch_size=2)
    theirs = AutoModelForCausalLM.from_pretrained(
        resolve("tiny-target"), dtype=torch.float32
    )
    theirs.requires_grad_(False)
    context, wanted = (
        "At first Ann has 7 coins. Then Ben",
        " gets 3 more coins than Ann.",
    )
    whole, begun = (
        model.codec.encode(context + wanted),
        len(model.codec.encode(context)),
    )
    logits = (
        theirs(torch.tensor([whole]))
        .logits[0, :, : model.codec.vocab_size]
        .log_softmax(-1)
    )
    told = [float(logits[i - 1, token]) for i, token in enumerate(whole)]
    pair = asked("loglikelihood", context, wanted)
    [(found, greedy), *_] = model.loglikelihood([pair, pair])
    assert found == pytest.approx(sum(told[begun:]), abs=1e-3)
    likeliest = logits.argmax(-1).tolist()[begun - 1 : -1]
    assert greedy is (likeliest == whole[begun:])
    end = [model.eot_token_id, *whole]
    logits = (
        theirs(torch.tensor([end]))
        .logits[0, :, : model.codec.vocab_size]
        .log_softmax(-1)
    )
    told = [float(logits[i, token]) for i, token in enumerate(whole)]
    text = asked("loglikelihood_rolling", context + wanted)
    assert model.loglikelihood_rolling([text]) == [pytest.approx(sum(told), abs=1e-3)]
    longer = asked("loglikelihood", f"{context} " * 900, wanted)
    assert model.loglikelihood([longer])[0][0] < 0


def test_an_answer_ends_at_a_stop_string_and_is_not_written_further() -> None:
    model = adapter(batch_size=2)
    question = model.apply_chat_template(
        [{"role": "user", "content": next(iter(load_items("tiny:1"))).question}]
    )
    [whole] = ask(model, question, max_gen_toks=300)
    [cut, again] = ask(model, question, question, max_gen_toks=300, until=["\n\n"])
    assert cut == again == whole.split("\n\n")[0] != whole
    [nothing] = ask(model, question, max_gen_toks=300, until=["", "nowhere"])
    assert nothing == whole


def test_a_request_that_comes_again_gets_another_sample() -> None:
    model = adapter(seed=3)
    texts = ask(
        model, *["At first Ann"] * 4, max_gen_toks=12, do_sample=True, temperature=1.5
    )
    assert len(set(texts)) > 1
    again = ask(
        model, *["At first Ann"] * 4, max_gen_toks=12, do_sample=True, temperature=1.5
    )
    assert texts == again


@pytest.mark.parametrize(
    ("prompt", "text", "found"),
    [
        ("Q", "a\n\nb", ("a", True)),
        ("Q", "ab", ("ab", False)),
        ("Q", "<think>x\n\ny", ("<think>x\n\ny", False)),
        ("Q<think>", "x\n\ny</think>\n\na\n\nb", ("a", True)),
        ("Q<think>\n\n</think>\n\n", "a\n\nb", ("a", True)),
    ],
)
def test_stop_strings_are_searched_after_the_thought(
    prompt: str, text: str, found: tuple[str, bool]
) -> None:
    from lr.measure.harness import said

    run: Any = SimpleNamespace(question=prompt, result=SimpleNamespace(text=text))
    assert said(run, ["\n\n"]) == found


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SettingError, match="there is no option deep"):
        adapter(deep=3)
    with pytest.raises(SettingError, match="--system_instruction"):
        adapter(system="Be brief.")
    model = adapter()
    with pytest.raises(SettingError, match="there is no option num_beams"):
        ask(model, "At first", num_beams=4)
    model.engine.models = SimpleNamespace(target=object())  # type: ignore[assignment]  # served
    with pytest.raises(SettingError, match="only generates"):
        model.loglikelihood([asked("loglikelihood", "At", " first")])


def test_the_command_says_a_mistake_in_one_line(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m lr.measure.harness`, in this process, which has loaded the harness and
    has its model in the list already, and without the thousands of tasks that come with
    it, which take seconds. A `SystemExit` with a text prints it and ends with code 1.
    """
    from lm_eval.tasks import TaskManager

    words = (
        f"--model lr --model_args target=tiny-target,depth=99 --include_path {tasks}"
    )
    monkeypatch.setattr(sys, "argv", ["harness", *words.split(), "--tasks", "coins"])
    monkeypatch.setattr(
        "lm_eval.api.registry.register_model", lambda name: lambda model: model
    )
    ours = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", ours)
    monkeypatch.delitem(sys.modules, "lr.measure.harness")
    with pytest.raises(SystemExit, match=r"^error: depth is 99"):
        runpy.run_module("lr.measure.harness", run_name="__main__")
