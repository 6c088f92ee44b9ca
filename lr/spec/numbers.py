r"""The numbers in a text, as exact values.

    numbers_in("1,080 g cost \$0.50, \\frac{7}{3} of ٣") == [1080, 0.5, 7, 3, 3]

`1,080`, `1{,}080`, `1\,080` and `1 080` with a narrow space are 1080; `.5` and `0.50`
are equal; digits of any script count, also beside letters of scripts without word
spaces. A minus belongs to a number unless it stands after something that it may
subtract from: "20-5" has 20 and 5, "x = -5" has -5.

Texts are compared by their numbers and by their words (`word_cosine`); no model is
asked.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from decimal import Decimal
from unicodedata import normalize

SEPARATOR = r"(?:,|\{,\}|\\,|\\ |~)"  # between groups of three digits
NARROW_SPACE = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
NUMBER = re.compile(
    rf"(?P<minus>(?:^|(?<=[=(\[{{,:<>$]))\s*[-−])?"
    rf"(?P<whole>\d{{1,3}}(?:{SEPARATOR}\d{{3}})+(?!\d)|\d+)?"
    r"(?P<part>(?<=\d)\.\d+|(?<![\d.])\.\d+)?"
)
WORD = re.compile(r"[^\W\d_]+")


def numbers_in(text: str) -> list[Decimal]:
    """The numbers of a text, in order, as exact values."""
    # NFKC makes full-width digits plain, but also a narrow space an ordinary one.
    plain = normalize("NFKC", NARROW_SPACE.sub(",", text))
    numbers = []
    for match in NUMBER.finditer(plain):
        whole, part = match["whole"], match["part"]
        if whole is None and part is None:
            continue
        sign = "-" if match["minus"] else ""
        digits = re.sub(r"\D", "", whole or "0")
        numbers.append(Decimal(f"{sign}{digits}{part or ''}"))
    return numbers


def word_cosine(first: str, second: str) -> float:
    """The cosine of the two texts' word counts, 0 to 1: of the angle between them as
    vectors with one axis per word, case ignored. 1 for two texts without words."""
    counts = [Counter(WORD.findall(text.casefold())) for text in (first, second)]
    if not counts[0] or not counts[1]:
        return float(counts[0] == counts[1])
    product = sum(counts[0][word] * counts[1][word] for word in counts[0])
    squares = [sum(count * count for count in words.values()) for words in counts]
    return product / math.sqrt(squares[0] * squares[1])
