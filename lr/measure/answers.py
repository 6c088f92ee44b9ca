"""The answer in a reply: in its boxes, or after `####`, or in the last sentence that
states an answer, or its last value; for a multiple choice the letter, never one out of
a sentence. Read next: `grading.py`, which compares it."""

import re
import unicodedata
from collections.abc import Callable, Iterator

from lr.result import boxes

TAIL = 10_000  # Characters from the end in which an answer without a box is looked for.
SENTENCE = 400  # Longest sentence in characters.

# --- Signs: a text as LaTeX has it

_NAMES = "times cdot le ge ne approx pm infty pi cup cap in emptyset".split()
_NAME_OF = dict(zip("×·≤≥≠≈±∞π∪∩∈∅", _NAMES, strict=True))
# a letter of a script that sets no blanks, or no Latin ones, beside its numbers
SCRIPT = r"[^\W\d_\0-\u03ff\u1e00-\u1fff]"

Rules = dict[str, str | Callable[[re.Match[str]], str]]
"""Patterns, and what replaces them, in this order."""
_COMPOSED: Rules = {  # signs that the plain forms of Unicode would take apart
    "([¼-¾⅐-⅞])": r"\\frac{\1}",
    "([⁰¹²³⁴-⁹⁺⁻]+)": r"^{\1}",
    "([₀-₉]+)": r"_{\1}",
    # a separator of thousands: 10\\,000, 1{,}000, 1,\\!000, a thin blank
    r"(?<=\d)(?:[\u00a0\u2009\u202f~]|\{,\}|\\[,;: ]|,?\\!,?)(?=\d{3}(?!\d))": "",
    "[，、､]": ", ",
}
_SIGNS: Rules = {
    r"(\\frac\{\d+)⁄": r"\1}{",  # "½" is "1⁄2" now
    r"√\s*(?:[({]([^(){}]*)[)}]|(\d+(?:\.\d+)?|[a-z]))": r"\\sqrt{\1\2}",
    f"[{''.join(_NAME_OF)}]": lambda sign: rf"\{_NAME_OF[sign[0]]} ",
    "[−–‐‑]": "-",
    "[÷⁄]": "/",
    "~": " ",
    "\r": "",
    "。": ". ",
    "[万萬]": " 万 ",
    "[亿億]": " 亿 ",
    "[€£¥₹]": r"\\$",
    "¢": " cents",
    r"°|\\degree\b": r"^\\circ ",
    r"(?![0-9])\d": lambda digit: str(int(digit[0])),
    rf"(?<=[0-9A-Za-z$%)}}])(?={SCRIPT})|(?<={SCRIPT})(?=[-0-9A-Za-z$\\(])": " ",
    r"(?:\\text\s*\{\s*)?\b(?:US|USD|EUR|GBP|INR|JPY|Rs\.?)[ }]*\\?\$?(?=\d)|\\yen\b": r"\\$",
}


def rewrite(text: str, rules: Rules) -> str:
    """The text after all rules."""
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text)
    return text


def as_latex(text: str) -> str:
    """The text with signs of Unicode as LaTeX has them: −3, ½, √2, 10⁻³, ≤, €5. Digits
    of any script and width are plain digits, without separators of thousands, and a
    blank sets them apart from letters of other scripts: "共１８元" is "共 18 元"."""
    return rewrite(unicodedata.normalize("NFKC", rewrite(text, _COMPOSED)), _SIGNS)


# --- Values: what an answer looks like in a sentence

_MATH = r"""(?x:  # LaTeX in its delimiters
    \$\$ (?:(?!\$\$).){1,400} \$\$
    | \\\[ (?:(?!\\[\[\]]).){1,400} \\\]
    | \\\( (?:(?!\\[()]).){1,400} \\\)
    # `$5 and $7` is money
    | (?<!\\)\$ (?!\d[\d.,]*\s+[A-Za-z]{2}) (?:\\.|[^$\n\\]){1,400} \$(?!\d)
    )"""
_BRACES = r"\{(?:[^{}]|\{[^{}]{0,100}\}){0,100}\}"
_LATEX = rf"(?:(?<!\d)\d{{1,9}})?\\[a-zA-Z]{{1,20}}(?:{_BRACES})+"  # a bare \frac{1}{2}
_TUPLE = (
    r"[(\[](?=[^()\[\]]{0,60}\d)[^()\[\]\nA-Za-z]{1,60},[^()\[\]\nA-Za-z]{1,60}[)\]]"
)
# (?=(?P<n>...))(?P=n) matches like the atomic group (?>...), which Python 3.11.0 to 3.11.4
# get wrong, as they do *+ and ++
_NUMBER = r"""(?x:
    (?=(?P<n>
    (?:(?<![\w)}])-)?                        # a sign
    (?<![\w.^_])(?<!\^\{)(?<![Ss]tep[ ])     # never the 2 of x2, x_2 or "Step 2"
    \\?\$?-?                                 # money
    (?: (?: \d{1,3}(?:[, ]\d{3})+(?!\d) | \d+ ) (?:\.\d+)?   # 1,000.5, 45 000 or 7
    | \.\d+ )                                # .5
    (?:[eE][+-]?\d+(?!\w))?                  # 1e5
    (?:[ ]\d+/\d+|[/:]\d+)?                  # 2 1/2, 1/2 or 3:4
    (?:\s?\\?%)?
    (?:[ ](?:thousand|million|billion|trillion|[万亿])\b)?
    ))(?P=n)
    (?![xyzn]\b)                             # never the 2 of 2x
    )"""
_VALUE = re.compile(f"(?s){_MATH}|{_LATEX}|{_TUPLE}|{_NUMBER}")
_EXPRESSION = re.compile(  # a digit or a command, no word but the names of functions
    r"""(?x)
    (?= [^\d\\]* [\d\\] )
    (?: \\[a-zA-Z]+
    | (?<![a-zA-Z]) (?:sqrt|sin|cos|tan|log|ln|exp|pi|[a-zA-Z]) (?![a-zA-Z])
    | [\d\s.,+*/^=<>()\[\]{}_!|%:-]
    )+"""
)
_BARE: Rules = {
    r"^\s*(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])\s*$": "",  # delimiters of mathematics
    # all but the end of "a = b = 5" and "\text{cost} = 5"
    r"""(?x)
    ^\s* (?: \\text\{[^{}]*\} | [^,;&]*=[^,;&]* ) =\s*
    (?= (?: [^=,;&{}] | \{(?:[^{}]|\{[^{}]*\})*\} )+ $ )""": "",
    r"^\s*(-?)\\?\$": r"\1",  # money
    r"^[\s,;]+|[\s.,;]+$": "",  # the dot of ".5" stays
}
_AND = re.compile(
    r"\s*(?:[,;]|(?:,\s*)?(?:and|or|&|[和或与及と]))\s*(?:[a-zA-Z]\s?=\s*)?"
)
# "she spends $5 over 30 days": the money in the last clause, unless it is a means or a price
_AMOUNT = re.compile(
    r"""(?isx)
    (?<!\b(?:with|from|than)[ ]) (?<!\bfor[ ]) (?<!\b(?:at|of|to|by)[ ]) (?<![-+*/=(][ ])
    (?=[-\\$]) (?! .* [,;][ ] )
    -?\\?\$\d[\d,.]*(?![\d,.])
    (?! \S*\$ | [{:] | \s* (?: (?:an?|per|each|every|more|less)\b | [-+*/=\\$] ) )"""
)


def _value(sentence: str) -> str | None:
    """The value that a sentence gives: all of it, if it is an expression, or else the
    last value in it, with those that "and", "or" and commas join to it."""
    sentence = sentence.lstrip(" ,;:!?").rstrip(" .,;:!?")
    if _EXPRESSION.fullmatch(sentence):
        return rewrite(sentence, _BARE)
    values = [
        value
        for value in _VALUE.finditer(sentence)
        if re.search(r"\d|\\[a-zA-Z]|[=<>]", value[0])  # `$n$` names something
    ]
    if not values:
        return None
    match _AMOUNT.findall(sentence):
        case [amount]:
            return rewrite(amount, _BARE)
    first = len(values) - 1
    while first and _AND.fullmatch(
        sentence, values[first - 1].end(), values[first].start()
    ):
        first -= 1
    return ", ".join(rewrite(value[0], _BARE) for value in values[first:])


# --- Sentences: which one states the answer

# emphasis and code marks; a power 2**3 and a product 2*3 stay
_MARKS = re.compile(
    r"(?m)(?<![\w)}])\*+(?=\S)|(?<=\S)\*+(?![\w({\\*-])|`+|^[ \t]*[-*+] |\b__|__\b"
)
_STATES = re.compile(
    r"""(?imx)
    # "The answer to this is", "Answer:", "### Final answer", "#### 18"
    \b(?:answer|result)s?\b [^.\n:=]{0,80}? (?:\b(?:is|are|equals)\b|=|:) :?
    | \bsolutions?[ ](?:is|are)\b:?
    | ^(?-i:A):
    | ^[\s#]*(?:final[ ])?answer\s*$
    | ^\s*\#\#\#\#\s* (?!\d+[.)]\s) (?=[-+$\\(*_]*\.?\d)
    # Chinese, Japanese, Korean, Russian: "答案是18", "答えは18です", "答: 18"
    | (?:答案|答え|正解|结果|結果|답|ответ) [^.\n:=]{0,20}? (?:[是为為は은는]|[:=]|-+) :?
    | ^答:"""
)
_DENIED = re.compile(
    r"""(?imx)
    # "is neither A nor B; it is C" says "is C"
    (?:\b(?:is|are)[ ])?
    (?: \b(?:neither|none[ ]of|no[ ]longer|can(?:not|['’]t)[ ]be|not(?![ ]only))
    | \b(?:is|are)n['’]t )[ ]
    [^;\n]{1,40}?
    (?: ;[ ] | ,?[ ]but[ ] | ,[ ](?=it\b) | \.[ ](?=(?:(?:so|thus|hence),?[ ])?it\b) )
    (?:(?:so|thus|hence),?[ ])? (?:rather[ ])? (?:it(?:['’]s|[ ](?:is|must[ ]be))[ ])?
    # "is not A." says nothing
    | \b (?: (?:is|are)(?:[ ]not|n['’]t) | can(?:not|['’]t)[ ]be )[ ]
    \(? (?: [a-z] | \$?-?\d[\d.,/]*\$? ) \)? (?=\.\s|\.?$)"""
)
_FINAL = re.compile(r"(?im)final answer|最终答案|^[\s*#]*answer\s*[:=]|####")
# a full stop within mathematics or a number ends no sentence
_SENTENCE = re.compile(rf"(?:(?s:{_MATH})|[^.!?\n]|[.!?](?=\S))+")
# after these words the answer is explained, or another one denied
_ASIDE = re.compile(
    rf"""(?ix)
    [,;]?\s*
    (?: \b (?: because|since|as|when|where|rather[ ]than|instead[ ]of|(?:and[ ])?not
        | or[ ](?:about|approximately|roughly)|that[ ]is|i\.e ) \b
    | ,[ ]which\b | ≈ | \\approx | [ ]\( | 因为 | 而不是
    | ,\s* (?![和或与及]) {SCRIPT} )"""
)
_HOLLOW = re.compile(  # no answer: an empty text, a long one, "the answer is correct"
    r"""(?isx)
    \Z | .{60}
    | (?:in|not|un)?
    (?: correct|right|wrong|valid|consistent|verified|clear|known|the|a|an|as|below|above
    | therefore|thus|reasonable|obtained|found|that )\b
    | 正确 | 对的 | 错"""
)
_RUN_ON = re.compile(  # a model that did not stop asks itself the next question
    r"""(?sx)
    ( (?: \#\#\#\#\s*\S{0,9}\d | \\boxed\{[^}\n] ) [^\n]{0,200} ) \n\s*
    \**(?:Question|Problem|Q|User|Human)\s*\d*\**: .*"""
)
_JOINS = re.compile(  # the text between the boxes of a list
    r"""(?isx)
    (?! .{81} | .*\n\n | \s*(?:\S+\s+){6}\S )   # too long, two paragraphs, seven words
    (?! .*\b(?:so|thus|hence|then|therefore|gives|wait|no|not|actually|but|rather)\b )
    (?! .*[.!?](?:\s|$) )
    (?: (?: \\q?quad | \\?[()\[\],;! ~$*] )* | .* (?:[,;&]|\band\b|\bor\b) .* )"""
)


def final_answer(text: str) -> str | None:
    """The final answer of a mathematical solution, or None. A final answer stated after
    the last box replaces it."""
    box, tail = _split(text)
    for states, sentence in _statements(_STATES, tail):
        before = _ASIDE.split(sentence, maxsplit=1)[0]
        value = _value(before) or _value(sentence)
        if value and (not box or _FINAL.search(states)):
            return value
        words = before.strip(" .:,$")
        if not (box or _HOLLOW.match(words)):
            return words
    if box:
        return box
    values = map(_value, _SENTENCE.findall(tail)[::-1])
    names = re.findall(f"(?s:{_MATH})", tail)
    return next(filter(None, values), rewrite(names[-1], _BARE) if names else None)


def boxed_answer(text: str) -> str | None:
    """The content of the last box, or None. Boxes joined by "and", "or" or a comma are
    a list: "x = \\boxed{1} and y = \\boxed{2}" is "1, 2"."""
    return _split(text)[0]


def _split(text: str) -> tuple[str | None, str]:
    """The content of the last boxes, and the end of the text after them."""
    text = _RUN_ON.sub(r"\1", text)
    end = len(text)
    after = max(0, end - TAIL)
    contents: list[str] = []
    for box in reversed(boxes(text)):
        if contents and not _JOINS.fullmatch(text, box.end, end):
            break
        after = max(after, box.end)
        contents.insert(0, box.content)
        end = box.start
    tail = as_latex(_MARKS.sub("", text[after:]))
    return ", ".join(dict.fromkeys(contents)) or None, _DENIED.sub("is ", tail)


def _statements(states: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """The sentences that state an answer, from the last: the words that do, and what
    follows them, which may begin on another line."""
    for words in reversed(list(states.finditer(text))):
        following = text[words.end() : words.end() + SENTENCE].lstrip(" \n:*_")
        sentence = _SENTENCE.search(following)
        if not following.startswith("?", sentence.end() if sentence else 0):
            yield words[0], sentence[0].strip() if sentence else ""


# --- Letters

_WRAPPER = re.compile(
    r"(?i)\\[a-zA-Z]+\s*\{|[{}$*_`\"'“”]|\\[()\[\]]|</?answer>|\b(?:option|choice|answer)\b"
)
_LETTER = re.compile(
    rf"""(?x)
    [\s:]* [(\[]?
    (?P<letter> [A-Z] | (?<=[(\[])[a-z] | [a-z](?=[.)\]\s]*$) )   # a small one: (a), or alone
    (?!['\w])
    (?: [.)\]\s]*$
    | [)\]]
    | (?= [ \t]* (?: \n | [.,;:!)\]—–-] | \( | \\
        | (?:because|since|as|due|for|which|with|and[ ]not)\b
        | (?![和或与及]) {SCRIPT} ) )
    )
    (?: \s* (?:,|and|or|&|/|[和或与及]) \s*\(? (?P<next>[A-Z]) (?!['\w]) )?"""
)
_CHOOSES = re.compile(
    r"""(?imx)
    \b(?:answer|option|choice|letter)\b [^.\n:=]{0,60}?
    (?: \b(?:is|be)\b (?:,?[ ](?:therefore|thus|hence|clearly),?)? | : | = | [ ][-–][ ] )
    | ^\W*correct: | <answer>
    | \b(?:choose|pick|select|go[ ]with|leaving)\b
    | \bI[ ](?:think|believe)[ ](?:that[ ])?it(?:['’]s|[ ]is)\b
    | (?:答案|答え|正解|답|ответ) [^.\n:=]{0,20}? (?:[是为為は은는选]|[:=]|-+)
    | (?<![不没])选择?(?!项)"""
)
_IS_RIGHT = re.compile(
    r"""(?x)
    \b([A-Z])\b\)?
    (?= [ ]is[ ](?:the[ ])?(?:correct|right|best|answer)\b
    | [ ](?:选项|项)?(?:是|为)?(?:正确|对) )"""
)


def chosen_letter(text: str, letters: str) -> str | None:
    """The chosen one of these letters, or None. Example: "\\boxed{\\text{(B)}}", "the
    answer is (B), because" and a last line "**B**" give "B"."""
    box, tail = _split(text)
    for _, sentence in _statements(_CHOOSES, tail):
        if letter := _letter(sentence, letters):
            return letter
    right = _IS_RIGHT.findall(tail)
    if right and right[-1] in letters:
        return right[-1]
    if box:
        return _letter(as_latex(box), letters)
    *earlier, last = tail.strip().split("\n")
    is_letter = len(_WRAPPER.sub("", last).strip(" .()[]")) == 1
    return _letter(last, letters) if is_letter or not earlier else None


def _letter(text: str, letters: str) -> str | None:
    """The letter that a text begins with, if it is no word of a sentence and no other
    letter follows. A small letter counts in brackets or alone."""
    match = _LETTER.match(_WRAPPER.sub("", text))
    if match is None or match["next"] in [*letters]:
        return None
    letter = match["letter"].upper()
    return letter if letter in letters else None
