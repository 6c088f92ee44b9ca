"""The schema as the tables of `docs/trace.md`. The page is made by this module, so it cannot say
anything else than the code.
"""

from __future__ import annotations

from lr.lab.trace.header import HEADER
from lr.lab.trace.schema import KINDS

GROUPS = (
    (
        "The scheduler's commands",
        ("draft", "target", "judge", "score", "cancel", "emit", "survive", "release"),
    ),
    (
        "What the scheduler is told",
        ("drafted", "undrafted", "targeted", "judged", "unsure", "decided"),
    ),
    (
        "The models and the verifier",
        ("forward", "token", "round", "written", "verifier", "span", "draw"),
    ),
    ("The cache", ("open", "fork", "grow", "cut", "close", "restore", "hold", "replace")),
    ("The end", ("end",)),
)
"""The kinds of event by subject, in the order of the page."""


def header_table() -> str:
    """The fields of the header, in Markdown."""
    rows = [f"| `{name}` | {says} |" for name, (says, _) in HEADER.items()]
    return "\n".join(["| field | value |", "|---|---|", *rows])


def event_tables() -> str:
    """All kinds of event, in Markdown."""
    parts = []
    for title, kinds in GROUPS:
        parts += [f"### {title}", "", "| event | field | value | meaning |", "|---|---|---|---|"]
        for name in kinds:
            kind = KINDS[name]
            parts.append(f"| **`{name}`** | | | {kind.says} |")
            parts += [
                f"| | `{field}` | {told.kind.says} | {told.means} |"
                for field, told in kind.fields.items()
            ]
            if kind.piece is not None:
                parts.append(f"| | `piece` | text | the text of `{kind.piece}` by itself |")
        parts.append("")
    return "\n".join(parts).rstrip()


def filled(page: str) -> str:
    """A page with its tables, which stand between the marks <!-- header --> or <!-- events --> and
    <!-- end -->, made anew.
    """
    for mark, table in (("header", header_table()), ("events", event_tables())):
        before, _, rest = page.partition(f"<!-- {mark} -->")
        _, _, after = rest.partition("<!-- end -->")
        page = f"{before}<!-- {mark} -->\n\n{table}\n\n<!-- end -->{after}"
    return page
