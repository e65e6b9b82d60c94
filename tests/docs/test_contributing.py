"""The page on contributing names files, sessions and commands that there are."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.util import find_spec

import pytest

from benchmarks.kit.catalogue import catalogue
from tests.kit.script import PACKAGE, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) + re.findall(r"`([^`\n]+)`", PAGE))


def sessions() -> set[str]:
    """Return the names of the sessions of nox, which need not be installed."""
    return {
        node.name
        for node in ast.parse((ROOT / "noxfile.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "nox.session" for decorator in node.decorator_list)
    }


def named_sessions(text: str) -> set[str]:
    """Return the sessions that commands in `text` ask for."""
    asked = re.findall(r"nox -s((?: [a-z_]+)+)", text)
    return {name for names in asked for name in names.split()}


def test_files_and_folders_exist() -> None:
    """Each path that is named, in the text, in a link or in a command, is one from the root."""
    paths = set(re.findall(r"[\w./-]+/[\w./-]+", COMMANDS)) | set(re.findall(r"\]\(([\w./-]+)", PAGE))
    paths = {path for path in paths if not path.startswith((".venv", "and/"))}
    assert len(paths) > 30
    places = (ROOT, PACKAGE.parent)
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []


def test_each_public_module_is_said_to_be_public() -> None:
    """All that have no underscore, but for commands and for `errors`, which `batched` exports."""
    modules = {path.stem for path in PACKAGE.glob("[!_]*.py")} | {
        path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py")
    }
    said = PAGE.partition("## What is public")[2].partition("\n## ")[0]
    assert set(re.findall(r"`batched\.(\w+)`", said)) == modules - {"demo", "errors"}


def test_all_sessions_exist() -> None:
    """Those that the page names, those that CI runs, and those that a commit runs."""
    known = sessions()
    named = named_sessions(PAGE) | set(re.findall(r"session\s`(\w+)`", PAGE))
    assert {"coverage", "soak", "tests"} <= named <= known
    # README's command is the session tests; parallel takes longer than all of that may.
    assert named_sessions((ROOT / ".ci" / "run").read_text()) == known - {"parallel", "tests", "wheel"}
    workflows = [file.read_text() for file in (ROOT / ".github" / "workflows").glob("*.yml")]
    assert named_sessions("\n".join(workflows)) == {"package", "site", "wheel"}
    committed = named_sessions((ROOT / ".pre-commit-config.yaml").read_text())
    assert committed == {"lint", "types"}


def test_modules_and_benchmarks_that_are_run_exist() -> None:
    """Those of `python -m`, and those that it is given."""
    modules = set(re.findall(r"python -m ([\w.]+)", COMMANDS))
    assert len(modules) >= 3
    for module in modules:
        assert find_spec(module), module
    (asked,) = re.findall(r"python -m benchmarks compare main \. ([a-z ]+)", PAGE)
    assert set(asked.split()) <= {benchmark.name for benchmark in catalogue()}


def test_the_setup_installs_an_extra_that_exists_with_the_torch_of_ci() -> None:
    """All in one command."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (found,) = re.findall(r'pip install -e "\.\[(\w+)\]" -c (\S+) && pre-commit install', PAGE)
    extra, constraints = found
    assert "torch==" in (ROOT / constraints).read_text()
    tools = {re.split(r"[<>=\[]", requirement)[0] for requirement in extras[extra]}
    assert {"nox", "pre-commit", "pyright", "ruff"} <= tools


@pytest.mark.parametrize("room", ["api", "collate", "core", "drivers", "features", "parts", "policy"])
def test_a_file_of_tests_is_named_after_its_module(room: str) -> None:
    """It has the name of a module of its room, or of one that lies in no room, and may go on after that."""
    modules = {path.stem for folder in (PACKAGE, PACKAGE / f"_{room}") for path in folder.iterdir()}
    starts = tuple(f"test_{module}_" for module in modules)
    files = [path.stem for path in (ROOT / "tests" / room).glob("test_*.py")]
    assert [file for file in files if not f"{file}_".startswith(starts)] == []


def asked_for(body: list[ast.stmt]) -> set[str]:
    """Return the libraries that tests ask for with `importorskip`: at once, or in a test that has no mark."""
    found = set()
    mark = re.compile(r"mark\.(model|ray|redis|soak|pages|editors|libraries|pages_alone)\b")
    is_marked = any(isinstance(node, ast.Assign) and mark.search(ast.unparse(node)) for node in body)
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_run = node.name.startswith("test_") and not is_marked
            if not is_run or any(mark.search(ast.unparse(each)) for each in node.decorator_list):
                continue
        found |= set(re.findall(r"importorskip\('(\w+)", ast.unparse(node)))
    return found


def test_tests_without_a_mark_ask_for_no_library_but_those_of_the_extra_test() -> None:
    """Nothing else is there on other Pythons, where a test that is skipped for that fails the session."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    has = [each for extra in ("demo", "msgpack", "prometheus", "test") for each in extras[extra]]
    names = tuple(re.sub(r"[^a-z].*", "", each.replace("-", "").replace("_", "")) for each in has)
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text("utf-8")
        asked = asked_for(ast.parse(text).body) if "importorskip" in text else set()
        for name in asked - sys.stdlib_module_names:
            assert any(each.startswith(name.replace("_", "")) for each in names), f"{file}: {name}"


def test_test_modules_import_no_other_and_do_not_sleep() -> None:
    """The soak takes real time; `asyncio.sleep(0)` is no sleep, but the next turn of a loop."""
    strays = []
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.ImportFrom(str(module), names):
                    is_stray = any("test_" in each for each in (module, *(alias.name for alias in names)))
                case ast.Call(ast.Name("sleep") | ast.Attribute(_, "sleep"), [seconds]):
                    is_stray = ast.unparse(seconds) != "0" and file.parent.name != "soak"
                case _:
                    is_stray = False
            if is_stray:
                strays.append(f"{file}:{node.lineno}: {ast.unparse(node)}")
    assert strays == []


@pytest.mark.parametrize("room", sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir()))
def test_every_room_of_the_tests_is_told(room: str) -> None:
    """What its tests say."""
    assert room.startswith((".", "__")) or f"| `tests/{room}`" in PAGE or f", `tests/{room}`" in PAGE
