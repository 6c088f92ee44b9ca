"""Pages of the documentation site that are not files of docs/: one per module of the
code, the notebooks, and the root's Markdown files.

mkdocs calls these functions (mkdocs.yml names this file as a hook). Links in the pages
are written for people who read the files where they are; here those that leave docs/
are turned to the page that shows the same thing, or to plain text where there is none
(tests). Formulas become MathML, set without a network; and the players of the page of
the algorithm are recorded anew.
"""

from __future__ import annotations

import ast
import html
import io
import posixpath
import re
import tempfile
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "lr" / "lookahead.py"  # shown as it is, from its first line to its last
ROOT_PAGES = (
    "GLOSSARY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "notebooks/README.md",
    "notebooks/exercises/README.md",
    *sorted(
        f"notebooks/answers/{path.name}"
        for path in (ROOT / "notebooks/answers").glob("*.md")
    ),
)
LAST_FOUND = "---\nsearch:\n  boost: 0.2\n---\n"
"""Begins a page that the search shows after the others: those of single modules."""
PLAYERS = {
    "lookahead": ["--mode", "lr", "--depth", "4"],
    "tokens": ["--mode", "lr+sd", "--depth", "4"],
    "width": ["--mode", "lr", "--depth", "2", "--width", "2"],
}
"""By name: how the answer of a player in the site is made, in lockstep, so that no other
work on the machine changes what is shown."""
FORMULA = re.compile(
    r"<(?:span|div) class=\"arithmatex\">\\[(\[](.+?)\\[)\]]</(?:span|div)>", re.DOTALL
)
IN_NOTEBOOK = re.compile(
    r"(?P<display>\$\$(.+?)\$\$)|\$(?![\s\d]*\$)([^$<>]+?)\$", re.DOTALL
)
PROSE = re.compile(r"<(code|pre|script|style)\b.*?</\1>", re.DOTALL)
NOT_A_PAGE = {"__main__.py"}
IN_HTML = re.compile(r'<a href="([^"]+)"([^>]*)>(.*?)</a>', re.DOTALL)
PICTURE = re.compile(r'(<img\b[^>]*\bsrc=")([^"]+)"')
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Put the notebooks and the code behind the pages that mkdocs.yml lists."""
    lessons: list[Any] = [{"The course": "notebooks/README.md"}]
    lessons += [{_title(path): f"notebooks/{path.name}"} for path in _notebooks()]
    lessons.append({"Exercises": "notebooks/exercises/README.md"})
    lessons.append({"Answers": [page for page in ROOT_PAGES if "/answers/" in page]})
    config.nav = [*config.nav, {"Notebooks": lessons}, {"Code": _packages()}]
    return config


@event_priority(100)  # before the plugin that reads notebooks
def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/."""
    for name in ROOT_PAGES:
        files.append(
            File.generated(
                config, name, content=(ROOT / name).read_text(encoding="utf-8")
            )
        )
    for path in _notebooks():
        files.append(
            File(
                f"notebooks/{path.name}",
                str(ROOT),
                config.site_dir,
                config.use_directory_urls,
            )
        )
    for path in _modules():
        content = f"{LAST_FOUND}# {_dotted(path)}\n\n::: {_dotted(path)}\n"
        if path == PAGE:
            content = beside(path.read_text("utf-8"))
        files.append(File.generated(config, _page(path), content=content))
    return files


def beside(source: str) -> str:
    """A module as a page of Markdown: what its docstrings say to the left, the code to the
    right, one part after the other."""
    lines = source.splitlines()
    tree = ast.parse(source)
    intro = (ast.get_docstring(tree) or "").split("\n", 1)
    title = intro[0]
    body = intro[1].strip("\n")
    page = f"---\nhide:\n  - navigation\n---\n# {title}\n\n{body}\n"
    start = tree.body[0].end_lineno or 0
    first_definition = next(n for n in tree.body if isinstance(n, DOCUMENTED))
    end = _first_line(first_definition) - 1
    page += "\n## What it is built from\n" + _part(
        "", "\n".join(lines[start:end]).strip()
    )
    start = end
    for node in tree.body[1:]:
        parts: list[ast.AST] = [node]
        if isinstance(node, ast.ClassDef):
            parts += [part for part in node.body if isinstance(part, ast.FunctionDef)]
            page += f"\n## {node.name}\n"
        elif isinstance(node, ast.FunctionDef):
            page += f"\n## {node.name}\n"
        else:
            continue
        ends = [*(_first_line(part) for part in parts[1:]), (node.end_lineno or 0) + 1]
        first = start  # comments and constants above a definition belong to it
        for part, end in zip(parts, ends, strict=True):
            words = ast.get_docstring(part) if isinstance(part, DOCUMENTED) else None
            code = _without_docstring(lines, first, end - 1, part)
            page += _part(words or "", code)
            first = end - 1
        start = node.end_lineno or 0
    ending = "\n".join(lines[start:]).strip()
    return page + (_part("", ending) if ending else "")


DOCUMENTED = (ast.ClassDef, ast.FunctionDef)


def _first_line(node: ast.AST) -> int:
    """The line at which a definition begins, its decorators included."""
    assert isinstance(node, DOCUMENTED)
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _without_docstring(lines: list[str], first: int, end: int, node: ast.AST) -> str:
    """Lines `first` to `end` (from 0) without the docstring of `node`."""
    skipped: set[int] = set()
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
        words = node.body[0]
        skipped = set(range(words.lineno - 1, words.end_lineno or 0))
    code = [line for i, line in enumerate(lines[first:end], first) if i not in skipped]
    return textwrap.dedent("\n".join(code).strip("\n"))


def _part(words: str, code: str) -> str:
    """One row of the page."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    paragraphs = [html.escape(text) for text in re.split(r"\n\s*\n", words) if text]
    prose = "".join(f"<p>{text}</p>" for text in paragraphs)
    prose = re.sub(r"`([^`]+)`", r"<code>\1</code>", prose)
    prose = re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", prose)
    shown = highlight(code, PythonLexer(), HtmlFormatter(cssclass="highlight"))
    shown = re.sub(r"\n\n+", "\n&#8203;\n", shown)  # a blank line would end the HTML
    return f'\n<div class="beside"><div>{prose}</div>{shown}</div>\n'


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn the links of a page that leave docs/."""

    def turned(link: re.Match[str]) -> str:
        text, target = link.groups()
        address = link_on(page.file.src_uri, target)
        if address is None:
            return (
                text if text.startswith("`") else f"`{text}`" if "/" in text else text
            )
        return f"[{text}]({address})"

    return LINK.sub(turned, markdown)


def link_on(page: str, target: str) -> str | None:
    """Where a link of a page leads in the site; None if nothing there shows that file."""
    if "://" in target or target.startswith(("#", "mailto:", "data:")):
        return target
    of_root = page in ROOT_PAGES or page.endswith(".ipynb")
    path, hash_sign, anchor = target.partition("#")
    folder = posixpath.join("" if of_root else "docs", posixpath.dirname(page))
    linked_page = _page_of(posixpath.normpath(posixpath.join(folder, path)))
    if linked_page is None:
        return None
    relative = posixpath.relpath(linked_page, posixpath.dirname(page) or ".")
    if re.fullmatch(r"L\d+", anchor):  # a line of a file; pages of code have names
        return relative
    return f"{relative}{hash_sign}{anchor}"


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Formulas as MathML; of notebooks also the links and pictures, which
    `on_page_markdown` does not see."""
    if not page.file.src_uri.endswith(".ipynb"):
        return FORMULA.sub(
            lambda formula: mathml(formula[1], formula[0].startswith("<div")), content
        )

    def address(target: str) -> str | None:
        found = link_on(page.file.src_uri, target)
        return found and re.sub(r"\.(md|ipynb)(?=#|$)", ".html", found)

    def turned(link: re.Match[str]) -> str:
        target, attributes, text = link.groups()
        there = address(target)
        return f'<a href="{there}"{attributes}>{text}</a>' if there else text

    content = IN_HTML.sub(turned, content)
    content = PICTURE.sub(lambda img: f'{img[1]}{address(img[2])}"', content)
    parts = []
    end = 0
    for code in PROSE.finditer(content):  # what is code keeps its dollars
        parts += [in_prose(content[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, in_prose(content[end:])])


def in_prose(text: str) -> str:
    """The formulas of a notebook's prose as MathML."""
    return IN_NOTEBOOK.sub(
        lambda formula: mathml(formula[2] or formula[3], bool(formula["display"])), text
    )


def mathml(latex: str, display: bool) -> str:
    """A formula as MathML; `latex` as it stands in HTML."""
    from latex2mathml.converter import convert

    return str(
        convert(html.unescape(latex).strip(), display="block" if display else "inline")
    )


def on_post_build(config: Any) -> None:
    """The players that docs/algorithm.md shows, of answers that are recorded now, and of
    the recorded answers of real models; and a look at every link of every page."""
    from lr.watch.player.page import player_page
    from lr.watch.recorded import RECORDED, recorded_path
    from lr.watch.trace.file import read_trace

    folder = Path(config.site_dir) / "player"
    folder.mkdir(exist_ok=True)
    for name in PLAYERS:
        write_player(name, folder / f"{name}.html")
    for name in RECORDED:  # answers of real models, which come with the package
        page = player_page(read_trace(recorded_path(name)))
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    require_links(folder.parent)


def require_links(site: Path) -> None:
    """Raise if a link or a picture of a page leads nowhere: mkdocs looks only at those in
    Markdown, and the notebooks are none."""
    lost = [
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        if page.parent.name != "player"  # their program writes links
        for target in re.findall(r'\b(?:href|src)="([^"#?]+)', page.read_text("utf-8"))
        if not re.match(r"\w+:|/", target) and not (page.parent / target).exists()
    ]
    if lost:
        raise RuntimeError("links that lead nowhere:\n" + "\n".join(sorted(set(lost))))


def write_player(name: str, path: Path) -> None:
    """Answer a problem in the way of a name, and write its player. One with a
    rejection: then its tour has every stop."""
    from lr.commands.cli import main
    from lr.registry import SAMPLE_QUESTION
    from lr.watch.player.story import CAPTIONS, tour_of
    from lr.watch.trace.file import read_trace

    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder) / "answer.jsonl")
        for command in (
            ["generate", SAMPLE_QUESTION, *PLAYERS[name], "--trace", trace],
            ["play", trace, "-o", str(path)],
        ):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = main(command)
            if code != 0:
                raise RuntimeError(f"lr {' '.join(command)} failed: run it to see why")
        if len(tour_of(read_trace(trace))) < len(CAPTIONS):
            raise RuntimeError(
                f"the tour of {name} lacks a stop: choose another problem"
            )


def _page_of(name: str) -> str | None:
    """The page that shows a file of the repository, from the top of the site."""
    if name in ROOT_PAGES or (
        name.startswith("notebooks/") and name.endswith(".ipynb")
    ):
        return name
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    path = ROOT / name
    if name.split("/")[0] == "lr":
        module = path / "__init__.py" if path.is_dir() else path
        return _page(module) if module.suffix == ".py" and module.exists() else None
    return None


def _notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def _modules() -> list[Path]:
    return sorted(
        path for path in (ROOT / "lr").rglob("*.py") if path.name not in NOT_A_PAGE
    )


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _page(path: Path) -> str:
    """Where a module's page is: code/lr/spec/scheduler.md, and code/lr/spec/index.md
    for a package."""
    relative = path.relative_to(ROOT).with_suffix(".md")
    return (
        "code/"
        + (
            relative.with_name("index.md") if path.name == "__init__.py" else relative
        ).as_posix()
    )


def _title(path: Path) -> str:
    number, _, words = path.stem.partition("_")
    return f"{number} {words.replace('_', ' ')}"


def _packages() -> list[dict[str, Any]]:
    """The code's pages by package, in the order of their names."""
    packages: dict[str, list[str]] = {}
    for path in _modules():
        if path == PAGE:  # it is listed in mkdocs.yml
            continue
        packages.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(
            _page(path)
        )
    return [
        {package: sorted(pages, key=lambda page: (not page.endswith("index.md"), page))}
        for package, pages in packages.items()
    ]
