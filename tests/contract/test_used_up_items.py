"""Items that a run uses up: their batch does not run again, so that none is answered as if empty."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.kit.culprits import Bad
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S, Gate, until


def upload(text: str) -> io.BytesIO:
    """Return an open file."""
    return io.BytesIO(text.encode())


def read(item: Any) -> str:
    """Return what `item`, or a file in it, contains; raise if that is bad."""
    if isinstance(item, dict | tuple | list):
        [item] = item.values() if isinstance(item, dict) else item
    text = str((item.read() if hasattr(item, "read") else b"".join(item)).decode())
    if text == "bad":
        raise Bad(text)
    return text


KINDS = [
    pytest.param(upload, id="file"),
    pytest.param(lambda text: iter([text.encode()]), id="iterator"),
    pytest.param(lambda text: (part for part in [text.encode()]), id="generator"),
    pytest.param(lambda text: {"file": upload(text)}, id="dict"),
    pytest.param(lambda text: (upload(text),), id="tuple"),
    pytest.param(lambda text: ([upload(text)],), id="list in a tuple"),
]


def texts(items: list[Any]) -> list[str]:
    """Return what the items contain; raise if one is bad."""
    return [
        read(item[0] if isinstance(item, tuple) and isinstance(item[0], list) else item) for item in items
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_such_items_fails_as_one_and_runs_once(flavour: Flavour, kind: Any) -> None:
    """Each caller gets the error, none an answer made of nothing."""
    gate = Gate(texts, note=len)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000)
    futures = [flavour.start(fn, kind(text)) for text in ("a", "b", "bad", "c")]
    assert {type(future.exception(PATIENCE_S)) for future in futures} == {Bad}
    assert gate.batches == [4]
    futures = [flavour.start(fn, kind(text)) for text in "abcd"]
    assert [future.result(PATIENCE_S) for future in futures] == list("abcd")


def notes_on_retries(error: BaseException | None) -> list[str]:
    """Return the notes of `error` on runs that there were not."""
    return [note for note in getattr(error, "__notes__", []) if "not retried in halves" in note]


def test_the_error_says_why_all_callers_have_it(flavour: Flavour) -> None:
    """Once, though the function raises the same error again; and not where an item has failed alone."""
    error = Bad("no text")

    def function(items: list[Any]) -> list[Any]:
        raise error

    gate = Gate(function, note=len)
    fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
    for _ in range(2):
        futures = [flavour.start(fn, upload(text)) for text in "ab"]
        for future in futures:
            (note,) = notes_on_retries(future.exception(PATIENCE_S))
            assert "an item that one run may use up (an iterator, an open file, a socket, a queue)" in note
    assert gate.batches == [2, 2]
    error = Bad("another")
    lonely = flavour.decorate(gate, batch_size=1, timeout_ms=0)
    assert not notes_on_retries(flavour.start(lonely, upload("a")).exception(PATIENCE_S))


def test_one_such_item_among_others_is_enough(flavour: Flavour) -> None:
    """Wherever it is: in a single call, in a list, in any column; others run again as always."""

    def function(names: list[str], files: list[Any]) -> list[str]:
        if "bad" in names:
            raise Bad
        return names

    gate = Gate(lambda batch: function(*batch), note=lambda batch: batch[0])

    def columns(names: list[str], files: list[Any]) -> Any:
        return gate((names, files))

    fn = flavour.decorate(columns, batch_size=3, timeout_ms=60_000)
    file = upload("")
    for calls in (
        [("a", b""), ("bad", b""), ("c", file)],
        [(["a", "c"], [b"", file]), ("bad", b"")],
    ):
        gate.batches.clear()
        futures = [flavour.start(fn, *call) for call in calls]
        assert {type(future.exception(PATIENCE_S)) for future in futures} == {Bad}
        assert len(gate.batches) == 1
    futures = [flavour.start(fn, *call) for call in (("a", b""), ("bad", b""), ("c", b""))]
    assert [type(future.exception(PATIENCE_S)) for future in futures] == [type(None), Bad, type(None)]


def test_a_list_of_them_fails_as_one_also_with_places_for_errors(flavour: Flavour) -> None:
    """It has one error for all."""
    gate = Gate(texts, note=len)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=0)
    files = [upload(text) for text in ("a", "bad", "b", "c")]
    answers = flavour.call(fn.options(return_exceptions=True), files)
    assert {type(answer) for answer in answers} == {Bad}
    assert gate.batches == [4]


@pytest.mark.parametrize("isolates", [True, False])
def test_memory_that_runs_out_does_not_run_them_again_either(flavour: Flavour, isolates: bool) -> None:
    """But the next batches are smaller."""

    def function(items: list[Any]) -> list[str]:
        found = texts(items)
        if len(items) > 2:
            raise MemoryError
        return found

    gate = Gate(function, note=len)
    fn = flavour.decorate(gate, batch_size=4, timeout_ms=60_000, adaptive=False, isolate_errors=isolates)
    futures = [flavour.start(fn, upload(text)) for text in "abcd"]
    assert {type(future.exception(PATIENCE_S)) for future in futures} == {MemoryError}
    assert fn.stats.fits_memory == 2
    futures = [flavour.start(fn, upload(text)) for text in "abcd"]
    assert [future.result(PATIENCE_S) for future in futures] == list("abcd")
    assert gate.batches == [4, 2, 2]


def test_streams_are_no_different(streaming: Flavour) -> None:
    """Of a generator that fails before its first pieces."""

    def function(items: list[Any]) -> Iterator[list[str]]:
        ran.append(len(items))
        yield texts(items)

    ran: list[int] = []
    fn = streaming.decorate(function, batch_size=3, timeout_ms=60_000)
    streams = [streaming.stream(fn, upload(text)) for text in ("a", "bad", "b")]
    for stream in streams:
        with pytest.raises(Bad):
            next(stream)
    until(lambda: not fn.stats.running_items)
    assert ran == [3]


def test_items_that_are_no_such_things_are_run_again(flavour: Flavour) -> None:
    """Texts, arrays, paths, and lists and dicts of these."""
    for item in ("text", b"bytes", np.ones(3), {"a": [1, 2], "b": np.ones(2)}, ("a", None), range(3)):
        gate = Gate(lambda items: [1] * len(items) if "bad" not in map(str, items) else 1 / 0, note=len)
        fn = flavour.decorate(gate, batch_size=2, timeout_ms=60_000)
        futures = [flavour.start(fn, each) for each in (item, "bad")]
        assert futures[0].result(PATIENCE_S) == 1
        assert isinstance(futures[1].exception(PATIENCE_S), ZeroDivisionError)
        flavour.close(fn)
