"""Check and time everything that has a path of its own on a GPU; needs torch and
transformers only.

    python scripts/gpu_check.py                          results in docs/results/gpu
    python scripts/gpu_check.py --output DIR --budget 540
    python scripts/gpu_check.py --only attention modes   some of them
    python scripts/gpu_check.py --small                  tiny sizes on the CPU, to test the checks

Every check runs in a process of its own with a time limit of its own, so a crash or a
hang costs that check only. What a check finds is a line of JSON in DIR/NAME.jsonl at
once; at the end comes a table, on the screen and in DIR/NAME.md. Exit code 1 if a check
failed, else 0, also where there is no CUDA device, which is said. No network, no
weights. The checks: `gpu_checks.py`, `gpu_times.py`.
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


def one_check(name: str, small: bool, lines: Path | None) -> dict[str, Any]:
    """Run a check in this process; what it tells goes to `lines` at once. An exception
    is a failure with its last line.
    """
    import torch
    from gpu_times import CHECKS, Sizes

    if small:
        torch.set_num_threads(1)
    device = torch.device("cpu" if small else "cuda:0")

    def tell(said: str) -> None:
        if lines is not None:
            with lines.open("a", encoding="utf-8") as file:
                print(json.dumps({"name": name, "told": said}), file=file, flush=True)

    try:
        ok, what = CHECKS[name][0](device, Sizes.small() if small else Sizes(), tell)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        ok, what = False, f"{type(error).__name__}: {error} ({place})"
    return {"name": name, "ok": ok, "what": what}


def in_own_process(name: str, small: bool, limit: float, lines: Path) -> dict[str, Any]:
    """Run a check in a process of its own, at most `limit` seconds."""
    command = [sys.executable, __file__, "--one", name, "--lines", str(lines)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    started = time.monotonic()
    found: dict[str, Any] = {"name": name, "ok": False}
    try:
        done = subprocess.run(
            [*command, *(["--small"] if small else [])],
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        printed = done.stdout.splitlines()
        if done.returncode == 0 and printed:
            found = json.loads(printed[-1])
        else:
            tail = " / ".join(done.stderr.splitlines()[-3:])
            found["what"] = f"the process ended with code {done.returncode}: {tail}"
    except subprocess.TimeoutExpired:
        found["what"] = f"not done after {limit:g} s"
    return found | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    """Check, write as it goes, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder; default docs/results/gpu")
    parser.add_argument(
        "--budget", type=float, default=1800, help="seconds for everything"
    )
    parser.add_argument("--only", nargs="+", help="names of checks")
    parser.add_argument("--small", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.one is not None:
        print(json.dumps(one_check(asked.one, asked.small, asked.lines)))
        return 0
    import torch
    from gpu_times import CHECKS

    from lr.measure.bench.report import conditions
    from lr.measure.report import table

    missing = not asked.small and not torch.cuda.is_available()
    chosen = {
        n: limit for n, (_, limit) in CHECKS.items() if n in (asked.only or CHECKS)
    }
    if unknown := set(asked.only or ()) - set(CHECKS):
        parser.error(
            f"no check is called {', '.join(unknown)}; there are {', '.join(CHECKS)}"
        )
    facts = {"date": time.strftime("%Y-%m-%d"), **conditions()}
    card = "cpu, small sizes" if asked.small else str(facts.get("card", "no cuda"))
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{card} {facts['date']}").strip("-").lower()
    if missing and asked.output is None:
        print(
            "no CUDA device here: nothing was checked. --small runs the checks on the CPU."
        )
        return 0
    folder = asked.output or ROOT / "docs" / "results" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    lines, end, found = folder / f"{stem}.jsonl", time.monotonic() + asked.budget, []
    lines.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    for name, limit in chosen.items():
        left = end - time.monotonic()
        if missing or left < 5:
            what = "no CUDA device here" if missing else "no time left"
            one: dict[str, Any] = {
                "name": name,
                "ok": None,
                "what": what,
                "seconds": 0.0,
            }
        else:
            one = in_own_process(name, asked.small, min(limit, left), lines)
            if left < limit and one["what"].startswith("not done"):
                one |= {"ok": None, "what": f"cut by the budget after {left:.0f} s"}
        found.append(one)
        with lines.open("a", encoding="utf-8") as file:
            print(json.dumps(one), file=file)
        print(f"{word(one):<8} {name}: {one['what']} ({one['seconds']} s)", flush=True)
    rows = [
        [one["name"], word(one), str(one["what"]), str(one["seconds"])] for one in found
    ]
    cells = [[cell.replace("|", "/") for cell in row] for row in rows]
    shown = "\n".join(table([["check", "outcome", "what", "s"], *cells]))
    machine = ", ".join(f"{name} {value}" for name, value in facts.items())
    text = f"# GPU checks, {facts['date']}\n\n{machine}\n\n{shown}\n"
    told = [
        json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()[1:]
    ]
    for name in chosen:
        said = [one["told"] for one in told if one["name"] == name and "told" in one]
        text += (
            f"\n## {name}\n\n" + "\n".join(["```", *said, "```", ""]) if said else ""
        )
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    print(
        f"\n# GPU checks, {facts['date']}\n\n{shown}\n\nkept in {folder / stem}.md and .jsonl"
    )
    return int(any(one["ok"] is False for one in found))


def word(one: dict[str, Any]) -> str:
    """The outcome in a word."""
    return {True: "ok", False: "FAILED", None: "skipped"}[one["ok"]]


if __name__ == "__main__":
    sys.exit(main())
