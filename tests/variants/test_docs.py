"""docs/variants.md: its examples run."""

import re

from tests_root import ROOT

from lr.spec.variant import Variant
from lr.variants.kit.check import check_parts

PAGE = (ROOT / "docs" / "variants.md").read_text("utf-8")


def test_the_examples_run_and_keep_their_contracts():
    names = {"__name__": "guide"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        exec(compile(block, f"docs/variants.md, example {number}", "exec"), names)
    for variant in (
        Variant(names["Penalised"](0.01, -1.5)),
        Variant(step_source=names["Again"](())),
        Variant(rule=names["Sure"]),
    ):
        [findings] = check_parts(lambda variant=variant: variant)  # type: ignore[misc]
        assert findings.broken == []
