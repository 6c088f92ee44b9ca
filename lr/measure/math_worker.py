"""The process that decides whether two answers are equal as mathematics.

math-verify (Apache-2.0) reads LaTeX into sympy and compares. On an answer such as
9^{9^{9^9}} both can run for ever or exhaust the memory, even in C. So this process has
a memory limit, and a watchdog outside of Python that ends it."""

import faulthandler
import logging
import os
import re
import sys
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import LatexExtractionConfig, grader, parse, parser
from math_verify.grader import sympy_numeric_eq as equal_nearly

MEMORY = 4 << 30  # Bytes of address space.
DIGITS = 14  # A decimal equals a root or pi if they agree to so many digits.
# math-verify reads "8 \\text{ hours } 30 \\text{ minutes}" as 8, and "12\\ldots" as 12
_HALF_READ = re.compile(
    r"""(?x)
    dots
    | \d[^\\]*\\(?:text|mbox|mathrm)\s*\{(?!\s*,?\s*(?:and|or)\b)[^{}]*[a-zA-Z][^{}]*\}
    (?!\s*\^).*\d"""
)


def compare_pairs(connection: Connection, seconds: float) -> None:
    """Send the verdict on each pair (gold, answer) received. Ends with the connection,
    or when a verdict takes longer than `seconds`."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable()
    grader.sympy_numeric_eq = equal_exactly
    parser.latex2sympy = partial(  # R and r are two letters
        latex2sympy, conversion_config=ConversionConfig(lowercase_symbols=False)
    )
    with Path(os.devnull).open("w") as nowhere, suppress(EOFError):
        while True:
            sides = connection.recv()
            faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
            connection.send(verdict(*sides))
            faulthandler.cancel_dump_traceback_later()


def verdict(gold: str, answer: str) -> str:
    """ "equal", or why not."""
    try:
        sides = read(gold), read(answer)
        if not all(sides):
            side = "answer" if sides[0] else "gold answer"
            return f"the {side} cannot be read as mathematics"
        equal = grader.verify(
            *sides, timeout_seconds=None, allow_set_relation_comp=True
        )
    except Exception:  # a parser may raise anything
        return "the answer cannot be read as mathematics"
    return "equal" if equal else "not equal"


def read(text: str) -> list[Any]:
    """A text as sympy reads it; empty if math-verify cannot parse all of it."""
    if _HALF_READ.search(text) or text.count("{") != text.count("}"):
        return []
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    box = rf"\boxed{{{text}}}"
    parsed = parse(box, config, fallback_mode="no_fallback", parsing_timeout=None)
    return [union(value) if " or" in text else value for value in parsed]


def union(value: Any) -> Any:
    """The union that "x < 1 or x > 2" means. math-verify reads it as a set of two
    relations; "x = 1 or x = 2" stays one."""
    parts = value.args if isinstance(value, sympy.FiniteSet) else ()
    relations = all(isinstance(part, sympy.logic.boolalg.Boolean) for part in parts)
    if not relations or all(part.is_Equality for part in parts):
        return value
    return sympy.Union(*(part.as_set() for part in parts))


def equal_exactly(gold: Any, answer: Any, *precision: int) -> bool:
    """math-verify's comparison of numbers, with its "equal" taken back unless it is
    exact for fractions, and true to 14 digits for others: to math-verify 1/3^70 and
    1/3^71 are equal, and 1/3 and 0.333333."""
    if not equal_nearly(gold, answer, *precision):
        return False
    if gold.has(sympy.UnevaluatedExpr) or answer.has(sympy.UnevaluatedExpr):
        return True  # a percentage: 28% is 28 and 0.28
    gold, answer = gold.doit(), answer.doit()
    if gold.is_Matrix or not (gold.is_number and answer.is_number):
        return True
    if gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    difference = abs((gold - answer).evalf(2 * DIGITS))
    return bool(difference <= abs(gold.evalf(2 * DIGITS)) * 10**-DIGITS)
