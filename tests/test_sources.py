"""What a machine can check about the sources: budgets of size, names, imports, links."""

import ast
import functools
import importlib.util
import io
import pkgutil
import re
import subprocess
import tokenize
from collections import Counter

import pytest
from tests_root import ROOT, blocks

PACKAGE = sorted((ROOT / "lr").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CORE = ("model", "kernels", "kvcache", "spec", "engine")
BELOW_THE_CLI = [
    path
    for path in PACKAGE
    if path.parent.name != "commands"
    and path.name not in ("__main__.py", "lookahead.py", "speculative.py")
]

# The budgets of CONTRIBUTING.md, held with 5 % of slack. The first two are not what they
# should be yet: they are held at what they are. They were 67,500 and 153,000 before
# evidence, `keep`, `goes_on` and `step_law`.
SLACK = 1.05
CORE_TOKENS = 68_200  # goal: 56,000
PACKAGE_TOKENS = 148_000  # goal: 128,000
TEST_TOKENS = 112_000
TOKENS_PER_LINE = 9.0
WIDE_LINES = 0.02
VAGUE_NAMES = 0.015
DOCUMENT_WORDS = 26_000

SAYS_NOTHING = frozenset(
    """all_ asked both found given heard how it kept known least made mine more most one other
    own place rest said seen some taken them these those told used what where whole why
    there""".split()
)
"""Words that do not say what a name holds."""
FREE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER
}  # fmt: skip


@functools.cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def tracked_files():
    """The files that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return sorted(path for path in paths if path.is_file())


def lines_with(paths, pattern):
    """Where a pattern occurs, as "file:line: text"."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in paths
        for number, line in enumerate(
            path.read_text("utf-8", "replace").splitlines(), 1
        )
        if re.search(pattern, line)
    ]


# ---- budgets


def documented_lines(tree):
    """The lines of docstrings, and of strings that follow an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        statements = body if isinstance(body, list) else []
        for before, statement in zip([None, *statements], statements, strict=False):
            if isinstance(before, (ast.Assign, ast.AnnAssign, type(None))):
                match statement:
                    case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=last):
                        yield from range(first, (last or first) + 1)


def size(paths):
    return sum(map(size_of_file, paths), Counter())


@functools.cache
def size_of_file(path):
    """Its tokens and lines of code, lines, wide lines, names, vague names."""
    text = path.read_text("utf-8")
    documented = set(documented_lines(parsed(path)))
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in FREE and token.start[0] not in documented
    ]
    lines = text.splitlines()
    names = [name for _, name in bindings(parsed(path))]
    return Counter(
        tokens=len(tokens),
        code=len({n for t in tokens for n in range(t.start[0], t.end[0] + 1)}),
        lines=len(lines),
        wide=sum(len(line) > 95 for line in lines),
        names=len(names),
        vague=sum(name in SAYS_NOTHING for name in names),
    )


def bindings(tree):
    """Names that are assigned, and parameters, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            yield from ((each.lineno, each.arg) for each in node.args.args)


def core():
    top = ROOT / "lr"
    rooms = {top / room for room in CORE}
    return [p for p in PACKAGE if p.parent == top or rooms & set(p.parents)]


@pytest.mark.parametrize(
    "paths, tokens",
    [(core(), CORE_TOKENS), (PACKAGE, PACKAGE_TOKENS), (TESTS, TEST_TOKENS)],
    ids=["core", "package", "tests"],
)
def test_tokens_of_code(paths, tokens):
    assert size(paths)["tokens"] <= tokens * SLACK


def test_the_package_is_not_packed():
    package = size(PACKAGE)
    assert package["tokens"] / package["code"] <= TOKENS_PER_LINE * SLACK
    assert package["wide"] / package["lines"] <= WIDE_LINES * SLACK


def test_names_say_what_they_hold():
    package = size(PACKAGE)
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in PACKAGE
        for line, name in bindings(parsed(path))
        if name in SAYS_NOTHING
    ]
    assert package["vague"] / package["names"] <= VAGUE_NAMES * SLACK, "\n".join(vague)


def test_documents_are_short():
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    pages = [p for p in pages if p.parent == ROOT or ROOT / "docs" in p.parents]
    words = sum(len(path.read_text("utf-8").split()) for path in pages)
    assert words <= DOCUMENT_WORDS * SLACK


@pytest.mark.parametrize("page, lines", [("lookahead", 400), ("speculative", 120)])
def test_the_pages_stay_pages(page, lines):
    text = (ROOT / "lr" / f"{page}.py").read_text("utf-8")
    assert len(text.splitlines()) <= lines


# ---- rules


def test_only_the_command_line_reads_the_environment():
    """That nothing prints there is a rule of ruff (T20)."""
    forbidden = "sys.stdout sys.stderr os.environ os.getenv os.putenv".split()
    assert not [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in BELOW_THE_CLI
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in forbidden
    ]


def test_no_state_at_module_level():
    """Names at module level are CONSTANTS, Types, functions and classes; nothing
    rebinds them."""
    for path in PACKAGE:
        tree = parsed(path)
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), path
        for name in [name for node in tree.body for name in assigned(node)]:
            assert re.match(r"_?[A-Z]|__\w+__$", name), f"{path}: {name}"


def test_a_name_means_one_thing():
    """Over all classes, functions and constants of modules. But for the two pages, which
    stand for themselves, names with `_` and `T`."""
    files = {}
    for path in PACKAGE:
        if path.name not in {"lookahead.py", "speculative.py"}:
            for name in defined(parsed(path)):
                files.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in files.items() if len(paths) > 1}


def assigned(statement):
    """The names that a statement gives values."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return []
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    parts = [part for target in targets for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def defined(module):
    """The public names of a module."""
    names = []
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        names += assigned(node)
    return [name for name in names if name != "T" and not name.startswith("_")]


def test_nothing_is_left_for_later():
    assert not lines_with(PACKAGE, r"\b(?:TODO|FIXME|XXX)\b")


def test_no_paths_of_one_machine():
    texts = [p for p in tracked_files() if p.suffix not in {".safetensors", ".png"}]
    machine = r"(?<![\w.:/])/(?:work|root|home|Users|opt|mnt|media)/\w"
    assert not lines_with(texts, machine)


def test_documents_name_what_exists():
    """Every `lr.name` resolves, every file of ours that is named or linked is there, and
    so is every test."""
    tests = {name for path in TESTS for name in defined(parsed(path))}
    for path in (path for path in tracked_files() if path.suffix == ".md"):
        text = path.read_text("utf-8")
        for dotted in sorted(
            set(re.findall(r"(?<![\w./-])lr(?:\.[A-Za-z_]\w*)+", text))
        ):
            assert resolves(dotted), f"{path}: {dotted} does not exist"
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (path.parent / link).exists(), f"{path}: {link} leads nowhere"
        for name in re.findall(
            r"`((?:lr|tests|scripts|training|docs)/[\w./-]+)`", text
        ):
            if path.name != "CHANGELOG.md":  # which names what is no longer there
                assert (ROOT / name).exists(), f"{path}: {name} does not exist"
        for name in re.findall(r"`(test_\w+)`", text):
            assert name in tests, f"{path}: {name} does not exist"


def test_the_sources_name_files_that_exist():
    """In backquotes, by the end of their path."""
    names = [path.as_posix() for path in tracked_files()]
    for path in PACKAGE:
        text = path.read_text("utf-8")
        for name in re.findall(r"`((?:\w+/)*\w+\.(?:py|md))`", text):
            found = any(each.endswith(f"/{name}") for each in names)
            assert found, f"{path}: {name} does not exist"


def resolves(dotted):
    """Whether a dotted name means a module, or something in one."""
    try:
        pkgutil.resolve_name(dotted)
    except AttributeError:
        # A module may need an extra that is not here.
        return importlib.util.find_spec(dotted) is not None
    return True


def test_readme_example_runs(capsys):
    [example] = blocks("README.md")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    assert "answer: " in shown and "correction" in shown and "accepted" in shown
