"""What a module imports and is called, and that pages name modules, classes and members that there are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import batched
from tests.kit.script import PACKAGE, ROOT

# A program that imports these has installed their extra.
THIRD_PARTY = {
    "_commands": {"matplotlib", "numpy", "rich"},
    "demo": {"numpy", "rich"},
    "opentelemetry": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
    "testing.independent": {"numpy"},
    "testing.plugin": {"pytest"},
    "top": {"prometheus_client", "rich"},
}


SAYS_NOTHING = {"base", "common", "handler", "helper", "manager", "misc", "tool", "util"}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


@cache
def parsed(module: str) -> ast.Module:
    """Return the source of a module as a tree: not at the import, which each process does that runs tests."""
    return ast.parse(MODULES[module].read_text(), str(MODULES[module]))


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the packages that are imported below `node` when it runs, at the top of the module or not."""
    match node:
        case ast.Import(names):
            yield from (alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(module, _, level):
            assert level == 0, "imports are absolute"
            yield str(module).partition(".")[0]
        case ast.If(ast.Name("TYPE_CHECKING"), _, orelse):
            for child in orelse:
                yield from imported(child)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imported(child)


def listed(module: str) -> list[str] | None:
    """Return the module's `__all__`."""
    for node in parsed(module).body:
        match node:
            case ast.Assign([ast.Name("__all__")], value):
                return list(ast.literal_eval(value))
    return None


def bound(aliases: list[ast.alias]) -> set[str]:
    """Return the names that an import binds."""
    return {alias.asname or alias.name for alias in aliases}


def defined(module: str) -> set[str]:
    """Return the names that the module's own statements bind; where names are gathered, its imports too."""
    names: set[str] = set()
    gathers = module == "typing" or module.endswith("__init__")
    for node in parsed(module).body:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                names.add(name)
            case ast.AnnAssign(ast.Name(name)):
                names.add(name)
            case ast.Assign(targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ImportFrom(source, aliases) if gathers and source != "typing":
                names |= bound(aliases)
            case ast.If(ast.Name("TYPE_CHECKING"), later) if gathers:  # `__getattr__` imports these
                names |= bound([each for node in later for each in node.names])
    return names


def test_imports_run_downwards() -> None:
    """The rooms are floors, and what decides knows neither clock, thread, event loop nor array."""
    pytest.importorskip("importlinter")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linter = [sys.executable, "-c", program]
    done = subprocess.run(linter, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout


def test_parts_know_each_other_one_way() -> None:
    """No modules import each other in a circle, for type checkers either: a protocol says what one asks."""
    known = {
        module: {
            name
            for node in ast.walk(parsed(module))
            if isinstance(node, ast.ImportFrom)
            for package, _, name in [str(node.module).partition(".")]
            if package == "batched" and name in MODULES and name != module
        }
        for module in MODULES
    }
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_only_extras_import_third_parties(module: str) -> None:
    """The library itself runs on the standard library alone."""
    others = set(imported(parsed(module))) - {"batched"} - sys.stdlib_module_names
    assert others <= THIRD_PARTY.get(module, set())


@pytest.mark.parametrize(
    "module", sorted(name for name, path in MODULES.items() if "\n__all__ = " in path.read_text())
)
def test_all_lists_only_what_the_module_defines(module: str) -> None:
    """No name in `__all__` is misspelt, listed twice or defined elsewhere."""
    names = listed(module) or []
    assert sorted(set(names)) == sorted(names)
    assert set() == set(names) - defined(module)


def test_the_public_names_are_complete_and_sorted() -> None:
    """`batched.__all__` is every public name that `batched/__init__.py` binds, constants first."""
    public = [name for name in defined("__init__") if not name.startswith("_")]
    assert sorted(public, key=lambda name: (not name.isupper(), name)) == batched.__all__


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"_logs", "_remote.command", "logging"}))
def test_one_module_writes_to_the_log(module: str) -> None:
    """A handler of the log may fail: where an error of it came through, a call would be lost."""
    names = {node.attr for node in ast.walk(parsed(module)) if isinstance(node, ast.Attribute)}
    assert "getLogger" not in names


def test_no_name_that_says_nothing() -> None:
    """No file is called utils, helpers, manager or the like."""
    words = {word for module in MODULES for part in module.split(".") for word in part.split("_")}
    assert set() == {word.removesuffix("s") for word in words} & SAYS_NOTHING


def members(tree: ast.AST) -> Iterator[str]:
    """Yield each class below `tree`, and `Class.name` of its methods and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
            for child in ast.walk(node):
                match child:
                    case (
                        ast.FunctionDef(name)
                        | ast.AsyncFunctionDef(name)
                        | ast.AnnAssign(ast.Name(name))
                        | ast.Attribute(ast.Name("self"), name)
                    ):
                        yield f"{node.name}.{name}"


@pytest.mark.parametrize(
    ("page", "elsewhere"),
    [
        ("docs/explanation/architecture.md", {"WeakKeyDictionary"}),
        ("CONTRIBUTING.md", {"BELONGS", "ROWS", "PROGRAM", "StandInRiver", "VERSION"}),
    ],
)
def test_a_page_names_what_there_is(page: str, elsewhere: set[str]) -> None:
    """Files, classes and their members, functions named with their file, and modules in the table."""
    text = (ROOT / page).read_text()
    files = set(re.findall(r"`([\w/]+\.(?:py|toml))`", text))
    places = (PACKAGE, PACKAGE.parent, ROOT)
    assert [file for file in files if not any((place / file).exists() for place in places)] == []

    named = set(re.findall(r"`(_?[A-Z]\w*(?:\.(?!md)\w+)?)`", text))
    assert named - {name for module in MODULES for name in members(parsed(module))} == elsewhere

    placed = re.findall(r"`(\w+)`(?:,| in|)\s\(?`(?:batched/)?(_\w+/\w+)\.py`", text)
    strays = [name for name, file in placed if name not in defined(file.replace("/", "."))]
    assert strays == []

    last = {part for module in MODULES for part in module.split(".")}
    for modules in re.findall(r"^\| (?:`_\w+`: [^|]*)?\| (\w[\w, ]*) \| ", text, re.MULTILINE):
        assert set(modules.split(", ")) <= last


def test_import_loads_only_the_standard_library_and_starts_no_thread() -> None:
    """`import batched` loads no numpy, no torch, nothing else from outside, and leaves one thread running."""
    script = """if True:
        import sys
        before = set(sys.modules)
        import batched
        print(*{name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
        print(len(sys._current_frames()))
    """
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["batched", "1"]
