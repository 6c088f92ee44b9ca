"""Check and time everything that has a path of its own on a GPU.

    python scripts/gpu_check.py --output DIR --budget 540 [--only machine rows] [--small]
    python scripts/gpu_check.py --only real --model DIR --draft_model DIR --data FILE

Every check runs in a process of its own with a time limit, so a crash or a hang costs
that check only. What it finds is a line of JSON in DIR/NAME.jsonl at once; the tables
come last. Exit code 1 if a check failed, else 0, also where there is no CUDA device,
which is said. No network; models have random weights, but for the check `real`. That
results are right is the business of `pytest -m gpu`; this script runs it, orders what
is left, and takes the time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import synthetic
import torch
from gpu_limits import least_seconds, measure_rates, timed
from gpu_questions import (
    compare_attention,
    compare_memory,
    compare_rounding,
    compare_single_row,
    long_branch,
    one_pass,
)

from lr.commands.cli import main as lr_main
from lr.engine.runner import ModelRunner
from lr.kvcache.branch import BLOCK_SIZE
from lr.measure.machine import conditions
from lr.measure.report import markdown_table
from lr.model.attention_choice import (
    AttentionNeeds,
    candidates,
    equip,
    set_attention,
)
from lr.model.weights import load_model


@dataclass(frozen=True)
class Here:
    """Where a check runs, whether at tiny sizes, and where its findings go. `words`:
    the flags of `lr experiment speedup` about a real checkpoint."""

    device: torch.device
    small: bool
    tell: Callable[[str], None]
    words: Sequence[str] = ()

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.small else torch.bfloat16

    @property
    def free_gib(self) -> float:
        return 0 if self.small else torch.cuda.mem_get_info(self.device)[0] / 2**30


class NotHere(Exception):
    """A check that does not apply to this machine, and why."""


# 1. The checks, each of which returns what it found in a sentence


def machine(here: Here) -> str:
    """What there is, and which attention is taken."""
    facts = []
    for name, kind in candidates(AttentionNeeds(here.device, here.dtype, (32, 8, 128))):
        here.tell(f"attention {name}: {kind if isinstance(kind, str) else 'works'}")
        facts += [] if isinstance(kind, str) else [name]
    if not here.small:
        facts.append(f"{here.free_gib:.1f} GiB free")
        facts.append("nccl " + ".".join(map(str, torch.cuda.nccl.version())))
    return ", ".join(facts)


def gpu_tests(here: Here) -> str:
    """`pytest -m gpu`."""
    if here.small:
        raise NotHere("the tests for a GPU need one")
    marked = (ROOT / "tests").rglob("test_*.py")
    paths = [p for p in marked if "mark.gpu" in p.read_text(encoding="utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *map(str, paths)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    for line in lines[-30:]:
        here.tell(line)
    if done.returncode != 0:
        raise RuntimeError(lines[-1])
    return lines[-1]


def layout(here: Here, draft: str, prompt: int) -> tuple[str, str, str | None]:
    """The largest target, draft and judge that this card holds with such a prompt."""
    if here.small:
        return "tiny-target", "tiny-draft", "tiny-judge"
    if here.free_gib >= 90:
        return "Qwen3-32B", draft, "Qwen2.5-7B"
    if here.free_gib >= 72 and prompt < 1000:  # 80 GB: verdicts cost nothing
        return "Qwen3-32B", draft, None
    return "Qwen3-8B", draft, None


def commanded(here: Here, work: Callable[[Sequence[str]], object], *words: str) -> None:
    """Run a command; what it prints is told."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        code = work(words)
    for line in shown.getvalue().splitlines():
        here.tell(line)
    if code:
        raise RuntimeError(f"{' '.join(words)} ended with code {code}")


def modes(
    here: Here,
    draft: str,
    prompt: int = 512,
    *,
    all_ways: bool = False,
    kept: float | None = None,
) -> str:
    """The four modes at the acceptance that the paper's Table 1 has for Qwen3 on GSM8K.
    `all_ways`: by window and by tokens drafted ahead, in answers of 1,024 tokens.
    `kept`: the share of draft steps that a verifier without a judge keeps."""
    ways = ["ar", "sd drafter=ngram num_speculative_tokens=3"]
    for depth, k in ((3, 3), (4, 4)) if all_ways else ((3, 3),):
        ways.append(f"lr depth={depth}")
        ways.append(f"lr+sd depth={depth} drafter=ngram num_speculative_tokens={k}")
    target, draft, judge = layout(here, draft, prompt)
    tokens = 24 if here.small else 1024 if all_ways else 320
    words = f"--model dummy:{target} --draft_model dummy:{draft} --problems 2".split()
    words += f"--device {here.device} --accepted {kept or 0.5} 0.24".split()
    words += f"--max_tokens {tokens} --temperature 0.6 --top_p 0.95 --top_k 20".split()
    words += f"--prompt_tokens {20 if here.small else prompt}".split()
    verifier = "likelihood"
    if kept is None and judge is not None:
        verifier = "judge"
        words += ["--judge_model", f"dummy:{judge}"]
    elif kept is None:
        verifier = "exact"  # verdicts cost nothing
    with tempfile.TemporaryDirectory() as folder:
        words += f"--verifier {verifier} --work {folder} --output {folder}".split()
        commanded(here, synthetic.main, *words, "--values", *ways)
        document = json.loads(Path(folder, "speedup.json").read_text())
    best: dict[str, float] = {}
    for row in document["rows"]:
        per_pass = 1e3 * row["tokens/pass"] / row["tokens/s"]
        here.tell(f"{row['way']}: {per_pass:.2f} ms per target pass")
        mode = row["way"].split()[0]
        best[mode] = max(best.get(mode, 0), row["speedup"] or 1)
    ratios = ", ".join(f"{mode} {ratio:.2f}" for mode, ratio in best.items())
    names = f"{target}, {draft}, {verifier}"
    return f"{names}: {ratios} of ar, which has kernels of its own"


def rounding(here: Here) -> str:
    """Greedy answers of `sd` beside those of `ar`, of a real checkpoint if one is
    given."""
    return compare_rounding(here, here.words[1] if here.words else None)


def real(here: Here) -> str:
    """The modes on a real checkpoint, by `lr experiment speedup`."""
    if not here.words:
        raise NotHere("no --model was given")
    with tempfile.TemporaryDirectory() as folder:
        folders = ["--work", folder, "--output", folder]
        commanded(here, lr_main, "experiment", "speedup", *here.words, *folders)
    return f"lr experiment speedup {' '.join(here.words)}"


def rows(here: Here, target: str | None = None) -> str:
    """One pass of the target (None: the largest) over 1, 5 and 5 x 5 rows, by length of
    the context and by attention; plain decoding as a share of the device's limit."""
    rates = measure_rates(here.device, here.dtype, small=here.small)
    here.tell(
        f"copies {rates.copied / 1e9:.0f} GB/s, reads {rates.read / 1e9:.0f} GB/s"
    )
    name = "tiny-target" if here.small else target or layout(here, "", prompt=0)[0]
    model = load_model(f"dummy:{name}", device=here.device, dtype=here.dtype)
    needs = AttentionNeeds(here.device, here.dtype, (32, 8, 128))
    kinds = {
        name: kind for name, kind in candidates(needs) if not isinstance(kind, str)
    }
    if len(kinds) > 1:
        del kinds["sdpa"]
    first, *_, last = lengths = (20, 60) if here.small else (1000, 8000, 16000)
    forms = {"1 row": (1, 1), "5 rows": (5, 1), "5 x 5 rows": (5, 5)}
    seconds: dict[tuple[str, int, str], float] = {}
    for kind, length in product(kinds, lengths):
        set_attention(model, kinds[kind])
        runner = ModelRunner(model, num_blocks=5 * (length + 200) // BLOCK_SIZE + 10)
        for form, (branches, tokens) in forms.items():
            chosen = [long_branch(runner, length) for _ in range(branches)]
            work = partial(one_pass, runner, chosen, tokens)
            spent = seconds[kind, length, form] = timed(work, here.device)
            here.tell(f"{kind}: {form} at {length}: {1e3 * spent:.3f} ms")
            for branch in chosen:
                runner.close(branch)
        runner.end()
    taken = next(iter(kinds))
    single, five, near = (seconds[taken, first, form] for form in forms)
    far = seconds[taken, last, "5 x 5 rows"]
    share = least_seconds(model.config, model.dtype, rates, 1, first) / single
    return (
        f"{taken}: 1 row {share:.2f} of the limit (goal 0.85); 5 rows {five / single:.2f} "
        f"of one (goal 1.10); 5 x 5 rows at {last} {far / near:.2f} of those at {first} "
        "(goal 1.30)"
    )


def ranks(here: Here) -> str:
    """A target over two GPUs: what a pass takes, on one and on two."""
    from lr.model.ranks import load_parallel

    if not here.small and torch.cuda.device_count() < 2:
        raise NotHere("one GPU here")
    name = "dummy:tiny-target" if here.small else "dummy:Qwen3-8B"
    alone = load_model(name, device=here.device, dtype=here.dtype)
    equip(alone, graphs=False)
    devices = (
        [here.device] * 2 if here.small else [torch.device("cuda", i) for i in (0, 1)]
    )
    spread = load_parallel(name, devices, here.dtype)
    times = []
    for model in (alone, spread):
        runner = ModelRunner(model, num_blocks=200)
        branch = long_branch(runner, 20 if here.small else 1000)
        times.append(1e3 * timed(partial(one_pass, runner, [branch], 5), here.device))
    spread.close()
    return f"5 rows without graphs: {times[0]:.2f} ms on one, {times[1]:.2f} ms on two"


CHECKS: dict[str, tuple[Callable[[Here], str], int]] = {
    "machine": (machine, 60),
    "attention": (compare_attention, 120),
    "tests": (gpu_tests, 200),
    "modes, 0.55 kept": (partial(modes, draft="Qwen3-0.6B", kept=0.55), 100),
    "modes, 0.65 kept": (partial(modes, draft="Qwen3-0.6B", kept=0.65), 100),
    "memory": (compare_memory, 60),
    "rounding": (rounding, 90),
    "rows 8B": (partial(rows, target="Qwen3-8B"), 60),
    "single row": (compare_single_row, 60),
    "modes 0.6B": (partial(modes, draft="Qwen3-0.6B", all_ways=True), 300),
    "rows": (rows, 200),
    "modes at 16k": (partial(modes, draft="Qwen3-0.6B", prompt=16000), 200),
    "modes 1.7B": (partial(modes, draft="Qwen3-1.7B"), 200),
    "modes at 8k": (partial(modes, draft="Qwen3-0.6B", prompt=8000), 200),
    "ranks": (ranks, 120),
    "real": (real, 600),
}
"""In the order in which they run: the check, and the seconds that it may take. Those to
`single row` answer what is open, in at most ten minutes."""


# 2. Running them


def run_here(
    name: str, small: bool, lines: Path | None, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a check in this process; what it tells goes to `lines` at once. An exception
    is a failure with its last line."""

    def tell(text: str) -> None:
        if lines is not None:
            write(lines, {"name": name, "told": text})

    if small:
        torch.set_num_threads(1)
    here = Here(torch.device("cpu" if small else "cuda:0"), small, tell, words)
    try:
        return {"name": name, "ok": True, "what": CHECKS[name][0](here)}
    except NotHere as error:
        return {"name": name, "ok": None, "what": str(error)}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where_raised = f"{Path(last.filename).name}:{last.lineno}"
        text = f"{type(error).__name__}: {error} ({where_raised})"
        return {"name": name, "ok": False, "what": text}


def run_apart(
    name: str, limit: float, lines: Path, flags: Sequence[str]
) -> dict[str, Any]:
    """Run a check in a process of its own, at most `limit` seconds."""
    command = [sys.executable, __file__, *flags, "--one", name, "--lines", str(lines)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    if "--small" in flags:
        environment["TRITON_INTERPRET"] = "1"
    outcome: dict[str, Any] = {"name": name, "ok": False}
    try:
        done = subprocess.run(
            command, env=environment,
            capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return outcome | {"what": f"not done after {limit:.0f} s"}
    printed = done.stdout.splitlines()
    if done.returncode == 0 and printed:
        return dict(json.loads(printed[-1]))
    tail = " / ".join(done.stderr.splitlines()[-3:])
    return outcome | {"what": f"the process ended with code {done.returncode}: {tail}"}


def write(file: Path, record: dict[str, Any]) -> None:
    """Add a line."""
    with file.open("a", encoding="utf-8") as stream:
        print(json.dumps(record), file=stream, flush=True)


WORDS = {True: "ok", False: "FAILED", None: "skipped"}


def main() -> int:
    """Check, write as it goes, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_checks"))
    parser.add_argument("--budget", type=float, default=1800, help="seconds for all")
    parser.add_argument("--only", nargs="+", choices=CHECKS, help="some of the checks")
    parser.add_argument("--small", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--model", help="a checkpoint, for the check `real`")
    parser.add_argument("--draft_model", help="its draft")
    parser.add_argument("--data", default="gsm8k.jsonl", help="problems, as for lr run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    words = []
    if flags.model is not None:
        words = ["--model", flags.model, "--dataset", flags.data, "--problems", "12"]
        if flags.draft_model is not None:
            words += ["--draft_model", flags.draft_model]
    if flags.one is not None:
        print(json.dumps(run_here(flags.one, flags.small, flags.lines, words)))
        return 0

    facts = {"date": time.strftime("%Y-%m-%d"), **conditions()}
    card = "cpu, small sizes" if flags.small else str(facts.get("card", "no cuda"))
    name = re.sub(r"[^A-Za-z0-9]+", "-", f"{card} {facts['date']}").strip("-").lower()
    flags.output.mkdir(parents=True, exist_ok=True)
    lines = flags.output / f"{name}.jsonl"
    lines.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    missing = not flags.small and not torch.cuda.is_available()
    end, outcomes = time.monotonic() + flags.budget, []
    for check in flags.only or CHECKS:
        started, limit = time.monotonic(), CHECKS[check][1]
        left = end - started
        outcome: dict[str, Any] = {"name": check, "ok": None}
        if missing:
            outcome["what"] = "there is no CUDA device here"
        elif left < 5:
            outcome["what"] = "no time left"
        else:
            outcome = run_apart(check, min(limit, left), lines, sys.argv[1:])
        outcome["seconds"] = round(time.monotonic() - started, 1)
        outcomes.append(outcome)
        write(lines, outcome)
        print(f"{WORDS[outcome['ok']]:<8} {check}: {outcome['what']}", flush=True)

    print(
        f"\n# GPU checks: {', '.join(f'{n} {value}' for n, value in facts.items())}\n"
    )
    shown = [["check", "outcome", "what", "s"]]
    for outcome in outcomes:
        result, finding = WORDS[outcome["ok"]], outcome["what"].replace("|", "/")
        shown.append([outcome["name"], result, finding, str(outcome["seconds"])])
    print(*markdown_table(shown), sep="\n")
    before = ""
    for record in map(json.loads, lines.read_text(encoding="utf-8").splitlines()[1:]):
        if "told" in record:
            heading = "" if record["name"] == before else f"\n## {record['name']}\n\n"
            print(f"{heading}{record['told']}")
            before = record["name"]
    print(f"\nkept in {lines}")
    return int(any(outcome["ok"] is False for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
