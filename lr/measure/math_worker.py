"""A script that decides whether two answers are equal as mathematics; it ends itself if
it hangs.

math-verify (Apache-2.0) reads LaTeX into sympy and compares. On an answer such as
9^{9^{9^9}} both can run for ever or exhaust the memory, even in C. So this process has
a memory limit, and a watchdog outside of Python that ends it after the seconds given as
its argument. It is run by its path and imports nothing of this package.

Standard input: [gold, answer] as JSON per line. Standard output: "ready" once, then
"equal" or why not, per line."""

from __future__ import annotations

import faulthandler
import json
import logging
import sys
from typing import Any

MEMORY = 4 << 30  # Bytes of address space.
START_SECONDS = 120.0  # sympy is large, and a machine may be busy.
DIGITS = 14  # A decimal equals a root or pi if they agree to so many digits.


def main() -> None:
    """Answer until the input ends, as it does when the parent process ends."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)
    from math_verify import grader

    grader.sympy_numeric_eq = exactly(grader.sympy_numeric_eq)
    with open(0, encoding="utf-8") as questions, open(1, "w", buffering=1) as answers:
        print("ready", file=answers)
        for line in questions:
            faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
            print(verdict(*json.loads(line)), file=answers)
            faulthandler.cancel_dump_traceback_later()


def verdict(gold: str, answer: str) -> str:
    """ "equal", or why not."""
    from math_verify import grader

    try:
        read_gold, read_answer = read(gold), read(answer)
        if not read_gold:
            return "the gold answer cannot be read as mathematics"
        if not read_answer:
            return "the answer cannot be read as mathematics"
        equal = grader.verify(
            read_gold, read_answer, timeout_seconds=None, allow_set_relation_comp=True
        )
    except Exception:  # a parser may raise anything
        return "the answer cannot be read as mathematics"
    return "equal" if equal else "not equal"


def read(text: str) -> list[Any]:
    """A text as sympy reads it; empty if math-verify cannot parse all of it."""
    import sympy
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=0)]
    box = "\\boxed{" + text + "}"
    parsed = parse(box, config, fallback_mode="no_fallback", parsing_timeout=None)
    if " or" not in text:
        return list(parsed)
    # "x < 1 or x > 2" is read as a set of two relations: their union is meant
    return [
        sympy.Union(*(part.as_set() for part in value.args))
        if isinstance(value, sympy.FiniteSet)
        and all(p.is_Relational and not p.is_Equality for p in value.args)
        else value
        for value in parsed
    ]


def exactly(numeric_eq: Any) -> Any:
    """math-verify's comparison of numbers, with its "equal" taken back unless it is
    exact for fractions, and true to 14 digits for others: to math-verify 1/3^70 and
    1/3^71 are equal, and 1/3 and 0.333333."""
    import sympy

    def equal(gold: Any, answer: Any, *precision: Any) -> bool:
        if not numeric_eq(gold, answer, *precision):
            return False
        if any(value.has(sympy.UnevaluatedExpr) for value in (gold, answer)):
            return True  # a percentage: 28% is 28 and 0.28
        gold, answer = gold.doit(), answer.doit()
        if gold.is_Matrix or not (gold.is_number and answer.is_number):
            return True
        if gold.is_Rational and answer.is_Rational:
            return bool(gold == answer)
        difference = abs((gold - answer).evalf(2 * DIGITS))
        return bool(difference <= abs(gold.evalf(2 * DIGITS)) * 10**-DIGITS)

    return equal


if __name__ == "__main__":
    main()
