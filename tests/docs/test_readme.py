"""Everything the README says was run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import batched
from batched._core.options import ArrayOptions, CallOptions, Options, live_options
from tests.kit.script import PACKAGE, ROOT

README = (ROOT / "README.md").read_text()


def test_the_examples_run_as_printed() -> None:
    """One after another, as a reader would type them."""
    namespace: dict[str, object] = {"__name__": "readme"}
    blocks = list(re.finditer(r"```python\n(.*?)```", README, re.DOTALL))
    assert len(blocks) >= 3
    for block in blocks:
        line = README.count("\n", 0, block.start()) + 1  # so that a traceback shows the README's line
        exec(compile("\n" * line + block[1], "README.md", "exec"), namespace)


def test_the_tables_list_every_option_with_its_default_and_its_sentence() -> None:
    """Of the decorator and of single calls, as the docstrings do."""
    for options in (Options, ArrayOptions, CallOptions):
        for field in fields(options):
            default = "the function's" if field.name == "name" else str(field.default)
            assert f"| `{field.name}` | {default} | {field.metadata['text']} |" in README


def test_the_number_of_live_options_is_told() -> None:
    """They are the first of the table, and those that `configure` changes."""
    live = live_options(Options)
    assert [*live] == [field.name for field in fields(Options)][: len(live)]
    numbers = ["eight", "nine", "ten", "eleven", "twelve"]
    assert f"changes the first {numbers[len(live) - 8]} while calls wait" in README


def test_the_two_commands_come_first() -> None:
    """The demo, then the tests."""
    commands = re.findall(r"pip install .*? && .*", README)
    assert [command.split(" && ")[1] for command in commands[:2]] == [
        "python -m batched.demo",
        "python -m pytest -n 2 --dist worksteal",
    ]


def test_no_page_and_no_extra_names_an_exact_version() -> None:
    """Users keep the libraries that they have; what CI takes stands in its constraints."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not re.findall(r"pip install .*==", README)
    assert not [each for extra in requirements.values() for each in extra if "==" in each]
    assert not [each for each in requirements["demo"] if each.startswith("torch")]


def texts() -> Iterator[Path]:
    """Yield the files that a user may read: pages, and what prints messages."""
    yield from ROOT.glob("*.md")
    yield from PACKAGE.rglob("*.py")
    for folder in ("docs", "examples", "benchmarks", ".github"):
        yield from (file for file in (ROOT / folder).rglob("*") if file.suffix in {".md", ".py", ".yml"})


def test_nothing_is_installed_from_the_index_under_our_name() -> None:
    """It is another project's there: commands name the clone, or the library that is missing."""
    text = "\n".join(file.read_text("utf-8") for file in texts())
    commands = re.findall(r"pip install([^`\n&;]*)", text)
    assert len(commands) > 10
    assert [command for command in commands if re.search(r"(?<![.\w])batched", command)] == []
    assert re.search(r"On the package index the name is another project's, `batched` 0\.1\.5", README)


def test_links_are_relative_until_the_address_of_the_repository_is_known() -> None:
    """There is one place for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "urls" in project or not re.findall(r"\]\(https?://", README)


def test_every_public_name_is_told() -> None:
    """A name nobody can read about is a name nobody can use."""
    for name in batched.__all__:
        documented = getattr(batched, name).__doc__
        assert documented, name
