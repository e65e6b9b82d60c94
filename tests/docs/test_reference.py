"""The reference has each option, public name, error and metric, and names tests that there are."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import batched
from batched._core.options import ArrayOptions, CallOptions, Options, live_options
from tests.kit.script import ROOT

REFERENCE = ROOT / "docs" / "reference"
PAGES = {page.stem: page.read_text("utf-8") for page in REFERENCE.glob("*.md")}
MODULES = (
    "batched",
    "batched.aio",
    "batched.aio.inference",
    "batched.inference",
    "batched.prometheus",
    "batched.typing",
)
ELSEWHERE = {"batched.aio", "batched.inference", "batched.typing", "batched.aio.inference"}
"""Public names that are modules: what they have is told."""


@pytest.fixture(scope="module")
def tables() -> Iterator[object]:
    """Return the module that makes the tables when the site is built."""
    folder = str(ROOT / "docs" / "_extensions")
    sys.path.insert(0, folder)
    yield import_module("tables")
    sys.path.remove(folder)


def asked(name: str) -> list[list[str]]:
    """Return the arguments with which pages ask for a table."""
    found = re.findall(
        rf"^```\{{generated\}} {name}\b([^\n]*)\n```$", "\n".join(PAGES.values()), re.MULTILINE
    )
    return [arguments.split() for arguments in found]


def test_each_public_name_is_described_once() -> None:
    """Of all public modules; a name that two modules export is one name."""
    described = [arguments[0] for arguments in asked("api")]
    assert len(set(described)) == len(described)
    told = {id(value_of(name)) for name in described}
    public = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__} - ELSEWHERE
    assert {name for name in public if id(value_of(name)) not in told} == set()


def value_of(name: str) -> object:
    """Return what has a public name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.mark.parametrize(
    "name", ["batched.BatchedFunction", "batched.aio.BatchedFunction", "batched.CurrentBatch"]
)
def test_each_public_method_is_described(name: str) -> None:
    """And each property; those that views need inside are no way to call."""
    (members,) = [arguments[1:] for arguments in asked("api") if arguments[0] == name]
    public = {each for each in dir(value_of(name)) if not each.startswith("_")}
    inside = {"plain_function", "with_call_options", "ways_to_call"}
    assert public - inside == {each for each in members if not each.startswith("_")}


def test_a_description_has_signature_docstring_and_types(tables: object) -> None:
    """As they are written in the source, overloads too, with short names of types."""
    text = tables.api("batched.BatchedFunction", "acall", "submit")
    assert (
        "{py:method} acall(item: T=..., /, **named: Any) -> U\n:async:\n\nAwait the result of one item"
        in text
    )
    assert "{py:method} acall(items: list[T]=..., /, **named: list[Any]) -> list[U]\n:no-index:" in text
    assert "collections.abc" not in tables.api("batched.dynamically")
    assert "cache: Cache | None = None" in tables.api("batched.dynamically")


def test_every_option_has_a_section_with_its_sentence(tables: object) -> None:
    """Of the decorators, of arrays and of single calls: made from the one table."""
    assert asked("options") == [["Options"], ["ArrayOptions"], ["CallOptions"]]
    for kind in (Options, ArrayOptions, CallOptions):
        text = tables.options(kind.__name__)
        for row in fields(kind):
            own = row.name in vars(kind)["__annotations__"]
            assert own == (f"(option-{row.name})=" in text)
            assert own == (row.metadata["text"] in text)


def test_live_options_are_told(tables: object) -> None:
    """Those that `configure` changes."""
    sections = tables.options("Options").split("(option-")[1:]
    live = [each.partition(")")[0] for each in sections if "changed by `configure`" in each]
    assert live == live_options(Options)


def test_every_metric_and_every_count_is_told(tables: object) -> None:
    """With its kind, its labels and its meaning."""
    pytest.importorskip("prometheus_client")
    assert asked("metrics") == [[]]
    assert "| `batched_batches_total` | counter | `name`, `reason` | Runs of" in tables.metrics()
    assert asked("counts") == [["StartReason"], ["Choice"]]
    assert "| `callers back` | All callers of the last batch" in tables.counts("StartReason")


def test_every_statistic_has_a_docstring(tables: object) -> None:
    """So that it has a place on the page."""
    for name in ("batched.Stats", "batched.typing.Learned"):
        text = tables.api(name, "*")
        rows = fields(value_of(name))
        assert [row.name for row in rows if f"{{py:attribute}} {row.name}\n" not in text] == []


def test_every_error_has_a_remedy() -> None:
    """What to do stands behind each description."""
    described = re.split(r"^```\{generated\} api ", PAGES["errors"], flags=re.MULTILINE)[1:]
    assert len(described) == len(batched.errors.__all__)
    assert [each.splitlines()[0] for each in described if "**What to do**" not in each] == []


def test_every_promise_names_tests_that_there_are() -> None:
    """Each has one at least."""
    promises = re.findall(r"^- (?:.+\n)(?:  .+\n)*", PAGES["reliability"], re.MULTILINE)
    assert len(promises) > 40
    for promise in promises:
        tests = re.findall(r"`(tests/[^`]+)`", promise)
        assert tests, promise
        assert [test for test in tests if not Path(ROOT, test).exists()] == []
