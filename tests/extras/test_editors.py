"""An editor shows what can be given and called: pyright's language server is asked."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import batched
from tests.kit.language_server import Editor
from tests.kit.script import PACKAGE

pytestmark = [pytest.mark.editors, pytest.mark.timeout(120)]

TEXT = '''\
import batched
from batched import aio, inference


@batched.dynamically(batch_size=64, isolate_errors=False, max_queue_size=9)
def embed(texts: list[str]) -> list[int]:
    """Embed texts."""
    return [len(text) for text in texts]


one = embed("x")
waiting = embed.acall("x")
view = embed.options(deadline_ms=3)
embed.configure(timeout_ms=1)
failed = embed.stats.total_failed
rows = inference.dynamically(len, pad_token=1)
tasks = aio.dynamically(max_pieces=7)
gpus = batched.Workers(2, initializer=str)
shared = batched.dynamically(len, workers=gpus)
worker = batched.current_worker()
reached = embed.
'''
UNFINISHED = "import batched\nbatched.dynamically("


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """An editor that has opened a file which uses the package."""
    with Editor(tmp_path_factory.mktemp("opened"), TEXT, search=PACKAGE.parent) as editor:
        yield editor


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("dynamically(batch", ["batch_size_: int = 64", "Batch the calls of a function that takes a list."]),
        ("batch_size=64", ["batch_size: int", "Default: 64. The most items in one batch."]),
        ("isolate_errors=", ["isolate_errors: bool", "Default: True. When a batch raises"]),
        ("max_queue_size=", ["max_queue_size: int | None", "Default: None. The most items that may wait"]),
        ('embed("x")', ["BatchedFunction[str, int", "Embed texts."]),
        ('acall("x")', ["item: str", "int]", "Await the result of one item"]),
        ("options(deadline", ["BatchedFunction[str, int", "Return a view of this function"]),
        ("deadline_ms=3", ["float | Literal['default'] | None", 'Default: "default". The most milliseconds']),
        ("configure(", ["Change options of this batcher"]),
        ("workers=gpus", ["workers: SharedByFunctions | None", "Default: None. The worker threads that run"]),
        ("Workers(2", ["workers: int | Iterable[str] = 1", "Make workers; their threads start when"]),
        ("current_worker()", ["Worker", "Return the worker that runs the calling batch function"]),
        ("timeout_ms=1", ["timeout_ms: float", 'Default: "auto". How many milliseconds']),
        ("stats.total", ["stats: Stats", "A snapshot of the batcher"]),
        ("total_failed", ["total_failed: int", "answered with an error"]),
        ("pad_token=1", ["pad_token", "Default: 0. What rows are padded with"]),
        ("max_pieces=7", ["max_pieces: int", "Default: 100000. How many pieces"]),
    ],
)
def test_a_name_is_shown_with_its_type_and_a_sentence(editor: Editor, place: str, shown: list[str]) -> None:
    """Decorators, options with their defaults, decorated functions, what they have, and numbers of stats."""
    text = " ".join(editor.hover(place).split())
    for part in shown:
        assert part in text


def test_all_options_are_offered(tmp_path: Path) -> None:
    """By name, inside the parentheses of the decorator."""
    names = [*inspect.signature(batched.dynamically).parameters][1:]
    with Editor(tmp_path, UNFINISHED, search=PACKAGE.parent) as editor:
        assert {f"{name}=" for name in names} <= {*editor.completions(UNFINISHED)}


def test_all_ways_to_call_are_offered(editor: Editor) -> None:
    """Behind the dot of a decorated function."""
    function = batched.BatchedFunction
    public = {name for name in dir(function) if not name.startswith("_") and hasattr(function, name)}
    assert public <= {*editor.completions("\nreached = embed.")}
