"""docs/variants.md: its examples run."""

from tests_root import blocks

from lr.spec.variant import Variant
from lr.variants.kit.check import check_parts


def test_the_examples_run_and_keep_their_contracts():
    names = {"__name__": "guide"}
    for number, block in enumerate(blocks("docs/variants.md")):
        exec(compile(block, f"docs/variants.md, example {number}", "exec"), names)
    for variant in (
        Variant(names["Penalised"](0.01, -1.5)),
        Variant(step_source=names["Again"](())),
        Variant(rule=names["Sure"]),
    ):
        [findings] = check_parts(lambda variant=variant: variant)
        assert findings.broken == []
