#!/bin/sh
# lm-eval 0.4.13, tasks aime, aime24 and aime25: right answers that count as wrong.
#
# Expected: an answer of AIME is a whole number from 000 to 999 and is compared as a number; the
# form in which the competition itself writes it, three digits, is right.
# Is: texts are compared. \boxed{025} is wrong where the answer is 25, and so are \boxed{25.0}
# and \boxed{\text{25}}. Without a box the answer is everything between the FIRST and the LAST
# dollar sign: "Let $a=1$. The answer is $25$." is wrong, "$25$" is right. A last box with a
# space before it, "\boxed 25.", keeps its full stop and is wrong.
#
# Output seen: 1 for \boxed{25} and $25$, 0 for the other five.
set -u
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT && cd "$folder" || exit 2
python3 -m venv venv && venv/bin/pip install -q --no-deps lm-eval==0.4.13 || exit 2
venv/bin/python - <<'PYTHON'
import importlib.util
import sys
from pathlib import Path

# The tasks' scoring is a file of the package that needs nothing else.
package = Path(importlib.util.find_spec("lm_eval").origin).parent
spec = importlib.util.spec_from_file_location("aime", package / "tasks/aime/utils.py")
aime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(aime)
answers = {
    r"\boxed{25}": 1,
    "$25$": 1,
    r"\boxed{025}": 0,
    r"\boxed{25.0}": 0,
    r"\boxed{\text{25}}": 0,
    "Let $a=1$. The answer is $25$.": 0,
    r"The answer is \boxed 25.": 0,
}
seen = {x: aime.process_results({"answer": 25}, [x])["exact_match"] for x in answers}
for answer, score in seen.items():
    print(score, answer)
sys.exit(0 if seen == answers else 1)
PYTHON
