"""Check and time everything that has a path of its own on a GPU; needs torch and transformers only.

    python scripts/gpu_check.py                          results in docs/results/gpu
    python scripts/gpu_check.py --output DIR --budget 540
    python scripts/gpu_check.py --only attention modes   some of them
    python scripts/gpu_check.py --small                  tiny sizes on the CPU, to test the checks

Every check runs in a process of its own with a time limit of its own, so a crash or a hang costs
that check only; its result is written at once, a line of JSON in DIR/NAME.jsonl, and a table at the
end, DIR/NAME.md. Exit code 1 if a check failed, else 0, also where there is no CUDA device. No
network, no weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMINGS = {"timings, small shapes": 150, "timings, large shapes": 240}
"""Seconds that the timings of `lr bench gpu` may take."""
SHAPES = {
    "timings, small shapes": ("Qwen3-1.7B", "Qwen3-0.6B", None),
    "timings, large shapes": ("Qwen3-32B", "Qwen3-1.7B", "Qwen2.5-7B"),
}
LARGE = 90 * 2**30
"""Free bytes that the large shapes need: 61 + 3 + 14 GiB of weights, caches, working memory."""


def one_check(name: str, small: bool) -> dict[str, Any]:
    """Run a check in this process. An exception is a failure with its last line."""
    import torch

    from lr.lab.bench.gpu_check import CHECKS, Sizes

    if small:
        torch.set_num_threads(1)
    device = torch.device("cpu" if small else "cuda:0")
    made: dict[str, Any] = {}
    try:
        if name in TIMINGS:
            ok, what = timings(name, device, small, made)
        else:
            ok, what = CHECKS[name][0](device, Sizes.small() if small else Sizes())
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        ok, what = False, f"{type(error).__name__}: {error} ({place})"
    return {"name": name, "ok": ok, "what": what} | made


def timings(name: str, device: Any, small: bool, made: dict[str, Any]) -> tuple[bool | None, str]:
    """`lr bench gpu` at real shapes, and what it says about the goal."""
    import torch

    from lr.lab.bench.gpu import GOAL, Plan, bench, report, ways
    from lr.lab.bench.synthetic import Synthetic
    from lr.options import GenerateOptions

    if not small and name == "timings, large shapes":
        free = torch.cuda.mem_get_info(device)[0]
        if free < LARGE:
            return None, f"{free / 2**30:.0f} GiB free, {LARGE / 2**30:.0f} needed"
    names = ("tiny-target", "tiny-draft", "tiny-judge") if small else SHAPES[name]
    options = GenerateOptions(
        mode="lr+sd",
        driver="overlapped",
        drafter="ngram",
        num_speculative_tokens=8,
        depth=4,
        max_tokens=24 if small else 256,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
    )
    plan = Plan(options, (1, 2), 20, 8, 2) if small else Plan(options, (1, 8))
    chosen = ways(("ar", "sd", "lr", "lr+sd"), ("lockstep", "overlapped"))
    devices = dict.fromkeys(("target", "draft", "judge"), device)
    # alpha1: Qwen3 on GSM8K in the paper's Table 1; alpha2 makes its SD speedup
    synthetic = Synthetic(0.5, 0.24, source="Table 1, Qwen3, GSM8K")
    dtype = torch.float32 if small else torch.bfloat16
    found = bench(names, devices, dtype, synthetic, plan, chosen)
    made |= {"bench": found, "report": report(found)}
    share = found["passes"][0]["share_of_limit"]
    verdict = "" if small else f" (goal {GOAL}: {'met' if share >= GOAL else 'missed'})"
    return True, f"{names[0]}, batch 1: {share:.2f} of the bandwidth limit{verdict}"


def in_own_process(name: str, small: bool, limit: float) -> dict[str, Any]:
    """Run a check in a process of its own, at most `limit` seconds."""
    command = [sys.executable, __file__, "--one", name, *(["--small"] if small else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    started = time.monotonic()
    found: dict[str, Any] = {"name": name, "ok": False}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines:
            found = json.loads(lines[-1])
        else:
            tail = " / ".join(done.stderr.splitlines()[-3:])
            found["what"] = f"the process ended with code {done.returncode}: {tail}"
    except subprocess.TimeoutExpired:
        found["what"] = f"not done after {limit:.0f} s"
    return found | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    """Check, write as it goes, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder; default docs/results/gpu")
    parser.add_argument("--budget", type=float, default=1800, help="seconds for everything")
    parser.add_argument("--only", nargs="+", help="names of checks")
    parser.add_argument("--small", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.one is not None:
        print(json.dumps(one_check(asked.one, asked.small)))
        return 0
    import torch

    if not asked.small and not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked. --small runs the checks on the CPU.")
        return 0
    from lr.lab.bench.gpu_check import CHECKS
    from lr.lab.bench.report import conditions
    from lr.lab.eval.report import table

    limits = {name: seconds for name, (_, seconds) in CHECKS.items()} | TIMINGS
    if unknown := [name for name in asked.only or [] if name not in limits]:
        parser.error(f"no check is called {', '.join(unknown)}; there are {', '.join(limits)}")
    facts = {"date": time.strftime("%Y-%m-%d"), **conditions()}
    card = "cpu, small sizes" if asked.small else str(facts["card"])
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{card} {facts['date']}").strip("-").lower()
    folder = asked.output or ROOT / "docs" / "results" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.budget
    found = []
    with (folder / f"{stem}.jsonl").open("w", encoding="utf-8") as lines:
        print(json.dumps(facts), file=lines, flush=True)
        for name, limit in limits.items():
            if asked.only and name not in asked.only:
                continue
            left = end - time.monotonic()
            if left < 5:
                one: dict[str, Any] = {"name": name, "ok": None, "what": "no time left"}
                one["seconds"] = 0.0
            else:
                one = in_own_process(name, asked.small, min(limit, left))
            found.append(one)
            print(json.dumps(one), file=lines, flush=True)
            print(f"{word(one):<8} {name}: {one['what']} ({one['seconds']} s)", flush=True)
    rows = [[one["name"], word(one), str(one["what"]), str(one["seconds"])] for one in found]
    cells = [[cell.replace("|", "/") for cell in row] for row in rows]
    shown = "\n".join(table([["check", "outcome", "what", "s"], *cells]))
    machine = ", ".join(f"{name} {value}" for name, value in facts.items())
    text = f"# GPU checks, {facts['date']}\n\n{machine}\n\n{shown}\n"
    text += "".join(f"\n## {one['name']}\n\n{one['report']}\n" for one in found if "report" in one)
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nkept in {folder / stem}.md and .jsonl")
    return int(any(one["ok"] is False for one in found))


def word(one: dict[str, Any]) -> str:
    """The outcome in a word."""
    return {True: "ok", False: "FAILED", None: "skipped"}[one["ok"]]


if __name__ == "__main__":
    sys.exit(main())
