"""The reference has each option, public name, error and metric, and names tests that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import batched
from batched._core.options import POSITIONAL, ArrayOptions, CallOptions, Options, live_options
from tests.kit.page import PAGES as WRITTEN
from tests.kit.script import ROOT

WITH_COMMANDS = [*WRITTEN, ROOT / "CHANGELOG.md"]
REFERENCE = ROOT / "docs" / "reference"
PAGES = {page.stem: page.read_text("utf-8") for page in REFERENCE.glob("*.md")}
MODULES = (
    "batched",
    "batched.aio",
    "batched.aio.inference",
    "batched.asgi",
    "batched.inference",
    "batched.logging",
    "batched.opentelemetry",
    "batched.problems",
    "batched.profile",
    "batched.prometheus",
    "batched.testing",
    "batched.top",
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


def described_names() -> list[str]:
    """Return the names that pages describe; those of methods begin with the name of their class."""
    return [arguments[0] for table in ("api", "entry", "note") for arguments in asked(table)]


def test_each_public_name_is_described_once() -> None:
    """Of all public modules; a name that two modules export is one name."""
    described = described_names()
    assert len(set(described)) == len(described)
    told = {id(value_of(name)) for name in described}
    public = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__} - ELSEWHERE
    assert {name for name in public if id(value_of(name)) not in told} == set()


def value_of(name: str) -> object:
    """Return what has a public name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(value_of(module), attribute)


def members_of(name: str) -> set[str]:
    """Return the public methods and properties of a class, but for those that views need inside."""
    inside = {"plain_function", "with_call_options", "ways_to_call"}
    found = value_of(name)
    # What a function of event loops has not says what to write instead.
    return {each for each in dir(found) if not each.startswith("_") and hasattr(found, each)} - inside


def test_each_public_method_is_described() -> None:
    """And each property. What a class of event loops has is what the other one has, and is named."""
    described = described_names()
    name = "batched.BatchedFunction"
    ours = [each.removeprefix(f"{name}.") for each in described if each.startswith(f"{name}.")]
    assert {"__call__", *members_of(name)} == set(ours)
    assert members_of("batched.aio.BatchedFunction") <= members_of(name)
    told = section("api", "batched.aio.BatchedFunction")
    assert [each for each in members_of("batched.aio.BatchedFunction") if f"`{each}`" not in told] == []
    assert {each for each in described if each.startswith("batched.Workers.")} == {
        f"batched.Workers.{each}" for each in members_of("batched.Workers")
    }


@pytest.mark.parametrize(
    "name",
    [
        "batched.CurrentBatch",
        "batched.Stats",
        "batched.profile.Profile",
        "batched.testing.ManualClock",
        "batched.typing.Distribution",
        "batched.typing.Padding",
    ],
)
def test_each_member_of_what_users_hold_is_described(tables: object, name: str) -> None:
    """Its methods and properties, as its attributes."""
    (arguments,) = [each for table in ("api", "entry") for each in asked(table) if each[0] == name]
    text = tables.api(*arguments)
    assert {each for each in members_of(name) if not re.search(rf"\}} {each}\b", text)} == set()


def section(page: str, name: str) -> str:
    """Return what a page says below the description of a name, up to the next description or heading."""
    found = re.search(
        rf"^```\{{generated\}} \w+ {re.escape(name)}\b(?!\.)[^\n]*\n```\n", PAGES[page], re.MULTILINE
    )
    assert found, name
    return re.split(r"^(?:## |```\{generated\})", PAGES[page][found.end() :], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


def examples(text: str) -> list[str]:
    """Return the examples in a text, which the test of the pages runs."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


METHODS = [
    arguments[0]
    for arguments in asked("entry")
    if arguments[0].startswith(("batched.BatchedFunction.", "batched.Workers."))
]


@pytest.mark.parametrize("name", METHODS)
def test_each_method_has_an_example(name: str) -> None:
    """It calls the method."""
    method = name.rpartition(".")[2]
    called = r"\w\(" if method == "__call__" else rf"\.{method}\b"
    if method == "shutdown":
        called = r"\bwith \w+:"
    assert any(re.search(called, example) for example in examples(section("api", name)))


def test_the_list_of_contents_tells_names_apart(tables: object) -> None:
    """Decorators and classes have the name of their module; what is listed is what has a heading."""
    headings = [tables.entry(*arguments).partition("\n")[0] for arguments in asked("entry")]
    assert len(set(headings)) == len(headings)
    assert "### `batched.aio.dynamically`" in headings
    assert "### `fn.acall`" in headings
    assert "### `workers.start`" in headings
    assert ":no-contents-entry:" in tables.entry("batched.BatchedFunction.acall")


def test_a_description_has_signature_docstring_and_types(tables: object) -> None:
    """As they are written in the source, overloads too, without what only type checkers need."""
    text = tables.api("batched.BatchedFunction", "acall", "submit")
    assert "{py:method} acall(item: T) -> U\n:no-index:" in text
    assert "{py:method} acall(items: list[T]) -> list[U]\n:async:\n\nAwait the result of one item" in text
    assert "stream(item: T, *more: Any, **named: Any) -> Stream[U]" in tables.api(
        "batched.BatchedFunction", "stream"
    )
    text = tables.api("batched.BatchedFunction", "map")
    assert (
        "map(items: Iterable[T], *more: Iterable[More], with_items: Literal[False]=...) -> Answers[U]\n"
        in text
    )
    assert "map(items: Iterable[T], *, with_items: Literal[True]) -> Answers[tuple[T, U]]\n" in text
    assert text.count("{py:method}") == 2
    assert "clock: Callable[[], float] = perf_counter)" in tables.api("batched.profile.profile")


def test_a_class_that_is_made_by_users_has_the_signature_and_the_arguments_of_that(tables: object) -> None:
    """Beside its docstring, and what is asked for besides all of its attributes."""
    text = tables.api("batched.Workers")
    assert "Workers(workers: int | Iterable[str] = 1, /, *, initializer: " in text
    assert "- `initializer`: Makes the state" in text
    text = tables.api("batched.WorkersStats", "*", "busy")
    assert "{py:class} WorkersStats\n" in text
    assert text.index("{py:attribute} workers\n") < text.index("{py:property} busy\n")


def test_options_in_signatures_are_left_to_their_page(tables: object) -> None:
    """But for a few; all are named."""
    text = tables.api("batched.dynamically")
    assert "{py:function} dynamically(func=None, **options)\n" in text
    assert "[Options](options.md): `batch_size`, `timeout_ms`, " in text
    assert "type `batched.Workers | None`" in tables.option("workers")
    text = tables.api("batched.BatchedFunction", "options")
    assert "options(*, deadline_ms=..., priority=..., return_exceptions=..., request_cache=...)\n" in text


ROWS = {row.name: row for kind in (ArrayOptions, CallOptions, Options) for row in fields(kind)}
OPTIONS = [name for (name,) in asked("option")]


def test_the_page_of_options_has_each_once_in_the_order_of_signatures() -> None:
    """But for those that may be given by position, and those of single calls, which have none."""
    assert sorted(OPTIONS) == sorted(ROWS)
    for kind in (ArrayOptions, CallOptions):
        own = [row.name for row in fields(kind) if row.name not in POSITIONAL]
        assert sorted(own, key=OPTIONS.index) == own


def test_the_table_of_options_names_those_of_each_group() -> None:
    """In the order in which they stand below."""
    page = PAGES["options"]
    table = re.findall(r"^\| \[([^]]+)\]\(#([\w-]+)\) \| (.+) \|$", page, re.MULTILINE)
    told = {heading: re.findall(r"`(\w+)`", names) for heading, _, names in table}
    groups = [
        part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:] if "{generated} option" in part
    ]
    stand = {
        part.partition("\n")[0].lower(): re.findall(r"\{generated\} option (\w+)", part) for part in groups
    }
    assert told == stand
    assert [*told] == [*stand]


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_says_when_to_set_it_and_how(tables: object, name: str) -> None:
    """Its text is short, and its example sets it."""
    text = tables.option(name)
    assert text.startswith(f"(option-{name})=\n### `{name}`\n")
    assert text.endswith(ROWS[name].metadata["text"])
    assert len(ROWS[name].metadata["text"].split()) <= 65
    below = section("options", name)
    assert below.startswith(("\n**Set it when** ", "\n**Set it to "))
    first = examples(below)[0]
    assert re.search(rf"\b{name}=", first)
    assert len(first.rstrip().splitlines()) <= 12


def test_live_options_are_told(tables: object) -> None:
    """Those that `configure` changes; and those that `options` takes."""
    facts = {name: tables.option(name).split("\n\n")[1] for name in OPTIONS}
    live = {name for name, told in facts.items() if told.endswith("`fn.configure` can change it.")}
    assert live == set(live_options(Options))
    assert {name for name, told in facts.items() if told.endswith("Set with `fn.options`.")} == set(
        live_options(CallOptions)
    )


def test_every_metric_and_every_count_is_told(tables: object) -> None:
    """With its kind, its labels and its meaning."""
    pytest.importorskip("prometheus_client")
    assert asked("metrics") == [[]]
    assert "| `batched_batches_total` | counter | `name`, `reason` | Runs of" in tables.metrics()
    assert asked("counts") == [["StartReason"], ["Choice"]]
    assert "| `callers back` | All callers of the last batch" in tables.counts("StartReason")


def test_every_statistic_has_a_docstring(tables: object) -> None:
    """So that it has a place on the page."""
    for name in (
        "batched.Stats",
        "batched.typing.Learned",
        "batched.WorkersStats",
        "batched.typing.WorkerStats",
        "batched.typing.FunctionShare",
        "batched.Worker",
    ):
        text = tables.api(name, "*")
        rows = fields(value_of(name))
        assert [row.name for row in rows if f"{{py:attribute}} {row.name}\n" not in text] == []


def test_every_error_has_a_remedy() -> None:
    """What to do stands behind each description."""
    described = re.split(r"^```\{generated\} api ", PAGES["errors"], flags=re.MULTILINE)[1:]
    assert len(described) == len(batched.errors.__all__)
    assert [each.splitlines()[0] for each in described if "**What to do**" not in each] == []


def test_the_options_of_the_command_are_told() -> None:
    """All of them, in the order of its help; and no page gives it another one."""
    asked = [sys.executable, "-m", "batched", "serve", "--help"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, encoding="utf-8", timeout=50)
    options = re.findall(r"^  (--[a-z-]+)", told.stdout, re.MULTILINE)
    assert re.findall(r"^\| `(--[a-z-]+)", PAGES["api"], re.MULTILINE) == options
    text = "\n".join(file.read_text("utf-8") for file in WITH_COMMANDS)
    given = re.findall(r"python -m batched serve ([^`\n]*)", text)
    assert len(given) > 10
    assert {option for each in given for option in re.findall(r"--[a-z-]+", each)} <= {*options}


def test_every_promise_names_tests_that_there_are() -> None:
    """Each has one at least."""
    promises = re.findall(r"^- (?:.+\n)(?:  .+\n)*", PAGES["reliability"], re.MULTILINE)
    assert len(promises) > 40
    for promise in promises:
        tests = re.findall(r"`(tests/[^`]+)`", promise)
        assert tests, promise
        assert [test for test in tests if not Path(ROOT, test).exists()] == []
