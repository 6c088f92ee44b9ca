"""The blanks of notebook 00: it runs with right answers in anybody's words, and usual
mistakes are told what is wrong."""

import sys
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO

import nbformat
import pytest
from tests_root import ROOT

FOLDER = ROOT / "notebooks"
BLANKS = ("plain", "joins", "decide")
RIGHT = (
    """
def plain(prompt):
    chain, passes = list(prompt), 0
    while True:
        [step], n = next_step(target, [chain])
        chain.extend(step)
        passes += n
        if finished(chain):
            return chain, passes
def joins(drafts, steps, same):
    for i in range(len(drafts)):
        if not same(drafts[i], steps[i]):
            return drafts[:i] + steps[i : i + 1]
    return drafts + steps[len(drafts) :]
def decide(nodes, same):
    root = nodes[0]
    if not root.draft.done or not root.target.done:
        return nodes
    if len(nodes) == 1 or not same(root.draft.step, root.target.step):
        return [Node(root.prefix + root.target.step)]
    return nodes[1:]
""",
    """
def plain(prompt):
    def go_on(chain, passes):
        if finished(chain):
            return chain, passes
        (step,), more = next_step(target, [chain])
        return go_on(chain + step, passes + more)
    return go_on(prompt + [], 0)
def joins(drafts, steps, same):
    kept = 0
    while kept < len(drafts) and same(drafts[kept], steps[kept]):
        kept += 1
    return [*drafts[:kept], *steps[kept : kept + 1]]
def decide(nodes, same):
    import from_scratch
    first, *rest = nodes
    if first.draft.done and first.target.done:
        if rest and same(first.draft.step, first.target.step):
            return rest
        return [from_scratch.Node(first.prefix + list(first.target.step))]
    return nodes
""",
)
LOOP = """def plain(prompt):
    chain, passes = list(prompt), 0
    while not finished(chain):
        (step,), n = next_step(target, [chain])
"""
DONE = """def decide(nodes, same):
    root = nodes[0]
    agree = same(root.draft.step, root.target.step)
    if not (root.draft.done and root.target.done):
        return nodes
"""
WRONG = {
    f"{LOOP}        chain += step\n    return chain[len(prompt):], passes": "lacks the prompt",
    f"{LOOP}        chain += step; passes += 1\n    return chain, passes": "you count 5",
    f"{LOOP}        passes += n\n    return chain, passes": "is every step appended",
    f"{LOOP}        chain += step; passes += n": "raised TypeError",
    """def joins(drafts, steps, same):
    return [d for d, s in zip(drafts, steps) if same(d, s)] + steps[len(drafts):]
""": "after the first difference",
    """def joins(drafts, steps, same):
    return [d if same(d, s) else s for d, s in zip(drafts, steps)]
""": "last step is missing",
    """def joins(drafts, steps, same):
    for i, (d, s) in enumerate(zip(drafts, steps)):
        if not same(d, s):
            return drafts[:i + 1]
    return drafts + steps[len(drafts):]
""": "not the draft's",
    f"{DONE}    return nodes[1:2] if agree else [Node(root.prefix + root.target.step)]":
    "all others stay",
    """def decide(nodes, same):
    root = nodes[0]
    agree = same(root.draft.step, root.target.step) and len(nodes) > 1
    return nodes[1:] if agree else [Node(root.prefix + root.target.step)]
""": "not complete",
    f"{DONE}    return nodes[1:] if agree else [Node(root.prefix)]": "[Node(...)]",
    f"{DONE}    return nodes[1:] or [] if agree else []": "[Node(...)]",
    f"{DONE}    return nodes[1:] if agree and nodes[1:] else [Node(root.target.step)]":
    "old prefix and the target's step"
}  # fmt: skip
"""By answer: what the check says about it."""


@pytest.fixture(scope="module")
def scratch():
    """The module of the notebook, which writes a step once: the answers below ask for
    the same ones."""
    sys.path.insert(0, str(FOLDER))
    import from_scratch

    write = from_scratch.next_step
    written = {}

    def remembered(model, prefixes):
        key = (model, *map(tuple, prefixes))
        if key not in written:
            written[key] = write(model, prefixes)
        return deepcopy(written[key])

    from_scratch.next_step = remembered
    yield from_scratch
    sys.path.remove(str(FOLDER))


def code_of_the_notebook():
    """Its cells of code, up to the last that shows what an answer does."""
    notebook = nbformat.read(FOLDER / "00_lookahead_from_scratch.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    [end] = (i for i, cell in enumerate(cells) if "decide, same=never" in cell.source)
    return cells[: end + 1]


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    "answers, whole",
    [(RIGHT[0], False), pytest.param(RIGHT[1], True, marks=pytest.mark.ci)],
)
def test_the_notebook_shows_the_same_with_right_answers(answers, whole):
    names = {}
    for cell in code_of_the_notebook():
        if "same=never" in cell.source and not whole:  # the slowest
            continue
        source, blank = cell.source, "raise NotImplementedError" in cell.source
        written = "".join(output.get("text", "") for output in cell.outputs)
        with redirect_stdout(StringIO()) as printed:
            exec(source, names)
            if blank:  # only the functions: a check takes each from here
                exec(answers, names)
        if "check_" in source:
            assert "is right" in printed.getvalue()
        else:
            assert printed.getvalue() == written, source


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_answer_is_told_and_replaced(answer, scratch, capsys):
    names = {n: getattr(scratch, n) for n in ("target", "finished", "next_step")}
    exec(answer, names)
    [name] = names.keys() & set(BLANKS)
    assert getattr(scratch, f"check_{name}")(names[name]) is getattr(scratch, name)
    said = capsys.readouterr().out
    assert said.startswith(f"✗ {name}: ") and WRONG[answer] in said


def test_the_draft_is_wrong_once_and_being_wrong_costs_no_pass(scratch):
    end = scratch.lookahead(scratch.prompt, 2)[0][len(scratch.prompt) :]
    text = scratch.codec.decode(end)
    assert "17 fewer" in text and "17 more" not in text
    never = scratch.rolling(scratch.prompt, 2, same=lambda ours, theirs: False)
    assert never == scratch.plain(scratch.prompt)
