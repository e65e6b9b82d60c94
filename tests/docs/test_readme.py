"""README is one page, whose commands and links are right; `test_pages.py` runs it."""

from __future__ import annotations

import ast
import asyncio
import re
import runpy
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import batched
from tests.kit.gate import PATIENCE_S
from tests.kit.page import BUILT
from tests.kit.script import PACKAGE, ROOT

README = (ROOT / "README.md").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_it_is_one_page() -> None:
    """All else stands in the documentation."""
    assert len(README.splitlines()) <= 110
    assert len(README.encode()) <= 6_000


def test_links_lead_to_files() -> None:
    """They are relative until the address of the repository is known."""
    paths = re.findall(r"\]\((?!https?:|#)([^)#]+)", README) + re.findall(r'src(?:set)?="([^"]+)"', README)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_links_are_absolute_on_the_package_index_once_there_is_an_address() -> None:
    """Pictures too, for light and dark; there is one place for the address."""
    with_links = runpy.run_path(str(ROOT / "setup.py"))["with_links"]
    assert with_links(README, None) == README
    linked = with_links(README, "https://example.org/batched")
    assert re.findall(r"\]\((?!https://example.org/batched/(?:blob|raw)/main/)[^)]*\)", linked) == []
    sources = re.findall(r'src(?:set)?="([^"]+)"', linked)
    assert len(sources) == 2
    assert all(source.startswith("https://example.org/batched/raw/main/docs/") for source in sources)


def test_the_first_lines_run() -> None:
    """A call from a thread, and one from a handler; the model sees lists."""
    source = README.partition("```py\n")[2].partition("```\n")[0]
    assert len([line for line in source.splitlines() if line]) <= 8
    seen: list[list[str]] = []

    class Model:
        def encode(self, texts: list[str]) -> np.ndarray:
            seen.append(texts)
            return np.array([[float(len(text))] for text in texts])

    names: dict[str, Any] = {"model": Model()}
    code = compile(source, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", batched.BlockingCallWarning)  # here both are in one place

        async def main() -> None:
            await eval(code, names)

        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert names["vector"] == [5.0]
    assert seen == [["hello"], ["hello"]]


def test_the_two_commands_come_first() -> None:
    """The demo, then the tests, each in a block of its own."""
    assert not re.search(r"pip install .*? && .*\npip install", README)
    commands = re.findall(r"pip install .*? && .*", README)
    assert [command.split(" && ")[1] for command in commands[:2]] == [
        "python -m batched.demo",
        "python -m pytest -n 4 --dist worksteal",
    ]


def test_no_page_and_no_extra_names_an_exact_version() -> None:
    """Users keep the libraries that they have; what CI takes stands in its constraints."""
    assert not [file for file in texts() if re.search(r"pip install .*==", file.read_text("utf-8"))]
    assert not [each for requirements in EXTRAS.values() for each in requirements if "==" in each]


def test_what_needs_a_library_has_an_extra_that_the_page_on_installing_names() -> None:
    """And it names none that there is not."""
    named = {*re.findall(r"\.\[(\w+)\]", (ROOT / "docs" / "install.md").read_text("utf-8"))}
    assert {"opentelemetry", "profile", "prometheus", "top"} <= named <= EXTRAS.keys()


def test_torch_is_in_the_extras_of_the_tests_and_of_the_examples_only() -> None:
    """Users have the torch that they want."""
    named = [(extra, each) for extra in EXTRAS for each in EXTRAS[extra] if each.startswith("torch")]
    assert sorted(named) == [("examples", "torch>=2.4"), ("test", "torch>=2.4")]


def texts() -> Iterator[Path]:
    """Yield the files that a user may read: pages, and what prints messages."""
    yield from ROOT.glob("*.md")
    yield from PACKAGE.rglob("*.py")
    for folder in ("docs", "examples", "benchmarks", ".github"):
        files = (file for file in (ROOT / folder).rglob("*") if not file.is_relative_to(BUILT))
        yield from (file for file in files if file.suffix in {".md", ".py", ".yml"})


def test_nothing_is_installed_from_the_index_under_our_name() -> None:
    """It is another project's there: commands name the clone, or the library that is missing."""
    text = "\n".join(file.read_text("utf-8") for file in texts())
    commands = re.findall(r"pip install([^`\n&;]*)", text)
    assert len(commands) > 10
    assert [command for command in commands if re.search(r"(?<![.\w])batched", command)] == []
    assert re.search(r"The `batched` on PyPI \(0\.1\.5\) is \[another project\]", README)


def test_every_public_name_is_told() -> None:
    """In its docstring, from which the reference is made."""
    for name in batched.__all__:
        documented = getattr(batched, name).__doc__
        assert documented, name
