"""An error says which item of a list has failed, and that a tuple was taken for one item."""

from __future__ import annotations

import weakref
from copy import deepcopy
from io import StringIO
from typing import Any

import numpy as np
import pytest

import batched
from batched.errors import BatchError
from tests.kit.flavours import Flavour
from tests.kit.maps import read


def halves(numbers: list[Any]) -> list[Any]:
    """Return half of each number; 13 fails alone."""
    return [ValueError("unlucky") if number == 13 else number / 2 for number in numbers]


def strict(numbers: list[Any]) -> list[Any]:
    """Return half of each number; the whole batch fails for a text."""
    return [number / 2 for number in numbers]


def notes_of(flavour: Flavour, fn: Any, *args: Any) -> list[str]:
    """Return the notes of the error of a call."""
    with pytest.raises((ValueError, TypeError)) as caught:
        flavour.call(fn, *args)
    return getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    ("numbers", "note"),
    [([13, 1, 2], "item 1 of 3 of embed"), ([1, 2, 13, 13], "item 3 of 4 of embed"), ([13], None)],
)
def test_the_error_of_an_item_of_a_list_says_which(
    flavour: Flavour, numbers: list[int], note: str | None
) -> None:
    """The first that failed, in the order of the caller's list."""
    fn = flavour.decorate(halves, name="embed", timeout_ms=0)
    assert notes_of(flavour, fn, numbers) == ([] if note is None else [note])
    assert notes_of(flavour, fn, 13) == []


@pytest.mark.parametrize("options", [{}, {"cache": {}}, {"length": len}, {"group_by": len}])
def test_an_item_that_ran_alone_is_known(flavour: Flavour, options: dict[str, Any]) -> None:
    """Though its function raised; and where a list is divided, its place is that in the list."""
    options = {"batch_size": 1, **deepcopy(options)}  # a cache of its own
    fn = flavour.decorate(lambda texts: list(map(int, texts)), name="embed", timeout_ms=0, **options)
    assert notes_of(flavour, fn, ["1", "22", "x", "44"]) == ["item 3 of 4 of embed"]


def test_where_it_is_not_known_which_item_failed_nothing_is_said(flavour: Flavour) -> None:
    """Of a list that runs at once, and raises."""
    fn = flavour.decorate(strict, timeout_ms=0)
    assert notes_of(flavour, fn, [1, "x"]) == []


@pytest.mark.parametrize("function", [lambda _: [], strict])
@pytest.mark.parametrize("cached", ["cache", "request_cache"])
def test_nothing_is_said_behind_a_cache_either(flavour: Flavour, cached: str, function: Any) -> None:
    """Of a list with the wrong number of results, or of which nothing runs again, as the decorator says."""
    options: dict[str, Any] = {"cache": {}} if cached == "cache" else {}
    fn = flavour.decorate(function, timeout_ms=0, isolate_errors=False, **options)
    view = fn if cached == "cache" else fn.options(request_cache={})
    with pytest.raises((BatchError, TypeError)) as caught:
        flavour.call(view, [1, "x", 2])
    assert not hasattr(caught.value, "__notes__")


def test_rows_of_arrays_are_no_items_behind_a_cache(flavour: Flavour) -> None:
    """The rows of one call are one key, and have one answer."""

    def broken(_: Any) -> Any:
        raise ValueError("unlucky")

    fn = flavour.decorate_arrays(
        broken, timeout_ms=0, cache={}, cache_key=lambda features: features["x"].tobytes()
    )
    assert notes_of(flavour, fn, {"x": np.zeros((4, 2))}) == []


@pytest.mark.parametrize(
    "options", [{"group_by": int}, {"length": int}, {"cache": {}, "cache_key": int}, {"max_batch_length": 9}]
)
def test_the_error_of_a_callback_says_of_which_item_it_is(flavour: Flavour, options: dict[str, Any]) -> None:
    """Of those of the list. In a list of 10,000 records it would be hard to find."""
    bad: Any = 3 if "max_batch_length" in options else "x"
    fn = flavour.decorate(list, name="embed", timeout_ms=0, **options)
    assert notes_of(flavour, fn, ["1", "2", bad, "4"]) == ["item 3 of 4 of embed"]
    assert notes_of(flavour, fn, bad) == []
    assert notes_of(flavour, fn, [bad]) == []


def test_an_item_that_cannot_be_a_key_of_the_cache_is_named_too(flavour: Flavour) -> None:
    """Also of the cache of one request."""
    cached = flavour.decorate(list, name="embed", timeout_ms=0, cache={})
    assert notes_of(flavour, cached, [1, {}]) == ["item 2 of 2 of embed"]
    fn = flavour.decorate(list, name="embed", timeout_ms=0)
    assert notes_of(flavour, fn.options(request_cache={}), [1, {}]) == ["item 2 of 2 of embed"]


@pytest.mark.parametrize(
    ("item", "note"),
    [
        (("a", "b"), "a tuple is one item; pass a list for several"),
        ({"a"}, "a set is one item; pass a list for several"),
        (range(3), "a range is one item; pass a list for several"),
        (np.array(["a"]), "a ndarray is one item; pass a list for several"),
        ("a", None),
    ],
)
def test_an_error_of_a_tuple_says_that_it_is_one_item(flavour: Flavour, item: Any, note: str | None) -> None:
    """And of an array: a newcomer may have meant many."""
    fn = flavour.decorate(strict, timeout_ms=0)
    assert notes_of(flavour, fn, item) == ([] if note is None else [note])


@pytest.mark.parametrize(
    ("items", "note"),
    [
        ((text for text in "ab"), "a generator is one item; pass a list for several"),
        (map(str, "ab"), "a map is one item; pass a list for several"),
        (filter(None, "ab"), "a filter is one item; pass a list for several"),
        (zip("ab", "cd", strict=True), "a zip is one item; pass a list for several"),
        (iter(["a"]), "a list_iterator is one item; pass a list for several"),
        ({"a": 1}.keys(), "a dict_keys is one item; pass a list for several"),
        ({"a": "b"}.values(), "a dict_values is one item; pass a list for several"),
        ({"a": "b"}.items(), "a dict_items is one item; pass a list for several"),
        (StringIO("a"), None),  # an upload, which is meant
        (weakref.proxy(strict), None),
        ({"a": "b"}, None),
    ],
)
def test_an_error_of_an_iterator_says_that_it_is_one_item(items: Any, note: str | None) -> None:
    """So does that of a view of a dict. An open file is one, but it is meant as one item."""
    fn = batched.dynamically(strict, timeout_ms=0)
    with pytest.raises(TypeError) as caught:
        fn(items)
    assert getattr(caught.value, "__notes__", []) == ([] if note is None else [note])


def test_columns_say_so_too(flavour: Flavour) -> None:
    """If one of them is a tuple."""
    fn = flavour.decorate(lambda xs, ys: [x / y for x, y in zip(xs, ys, strict=True)], timeout_ms=0)
    assert notes_of(flavour, fn, (1, 2), (3, 4)) == ["a tuple is one item; pass a list for several"]


def test_notes_are_of_one_caller(flavour: Flavour) -> None:
    """And nothing is added to the error that the function made."""
    error = ValueError("unlucky")
    fn = flavour.decorate(lambda xs: [error for _ in xs], timeout_ms=0)
    for _ in range(2):
        assert len(notes_of(flavour, fn, [1, 2])) == 1
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"deadline_ms": 60_000}])
def test_the_error_of_a_map_says_at_which_item_it_ended(flavour: Flavour, options: dict[str, Any]) -> None:
    """Counted from the first that was read, however many of them share a call."""
    deadline_ms = options.pop("deadline_ms", None)
    fn = flavour.decorate(halves, name="embed", timeout_ms=0, **options)
    answers, error = read(flavour, fn.options(deadline_ms=deadline_ms), [*range(10), 13, 1, 13])
    assert answers == [number / 2 for number in range(10)]
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["item 11 of a map of embed"]


def test_a_map_of_arrays_counts_elements_and_not_their_rows(flavour: Flavour) -> None:
    """The features of one call are one element of the source, however many rows they have."""

    def roots(features: dict[str, Any]) -> Any:
        if (features["x"] < 0).any():
            raise ValueError("unlucky")
        return features["x"] ** 0.5

    fn = flavour.decorate_arrays(roots, name="embed", timeout_ms=0)
    answers, error = read(flavour, fn, [{"x": np.full((3, 1), value)} for value in (1.0, 4.0, -1.0, 9.0)])
    assert [answer[0, 0] for answer in answers] == [1.0, 2.0]
    assert isinstance(error, ValueError)
    assert error.__notes__ == ["item 3 of a map of embed"]
