"""Which functions can have one cache where the items are the keys."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from batched._parts.store import Store


class Decorated:
    """Stands for a decorated function."""


class Model:
    """Has a method."""

    def run(self, items: list[Any]) -> list[Any]:
        """Return the items."""
        return items


MODEL = Model()


def claim(cache: Any, function: Any, decorated: Any = Decorated) -> Store:
    """Have `function` claim `cache`; return the store, which threads of its workers would keep."""
    store = Store(cache, getattr(function, "__qualname__", "it"))
    store.claim(function, decorated)
    return store


def as_text(items: list[Any]) -> list[str]:
    """Return each item as text."""
    return [str(item) for item in items]


def with_nothing_of_its_own() -> Callable[[list[Any]], list[Any]]:
    """Return a function that is made anew, and is the same."""
    return lambda items: as_text(items)


def with_a_value(value: int) -> Callable[[list[Any]], list[Any]]:
    """Return a closure."""
    return lambda items: [value for _ in items]


def with_a_default(value: int) -> Callable[..., list[Any]]:
    """Return a function that holds a value in another way."""
    return lambda items, value=value: [value for _ in items]


def test_a_function_that_was_dropped_claims_nothing() -> None:
    """As of a cell of a notebook that runs again, changed. Threads of its workers may keep its store."""
    cache: dict[Any, Any] = {}
    first, second = Decorated(), Decorated()
    stores = [claim(cache, with_a_value(1), first)]
    with pytest.raises(TypeError, match="have one cache"):
        claim(cache, with_a_value(2), second)
    del first
    gc.collect()
    stores.append(claim(cache, with_a_value(2), second))
    with pytest.raises(TypeError, match="have one cache"):
        claim(cache, with_a_value(3))
    assert len(stores) == 2


@pytest.mark.parametrize(
    "make",
    [with_nothing_of_its_own, lambda: as_text, lambda: "a b".split, lambda: MODEL.run],
    ids=["made anew", "the same", "method in C", "method"],
)
def test_a_function_that_is_the_same_may_go_on_with_the_cache(make: Callable[[], Any]) -> None:
    """As far as can be seen."""
    cache: dict[Any, Any] = {}
    store = claim(cache, make())
    assert claim(cache, make()) is not store


@pytest.mark.parametrize("make", [with_a_value, with_a_default])
def test_closures_and_lambdas_that_hold_values_may_differ(make: Callable[[int], Any]) -> None:
    """The message has a key that is not the other's, though both have one name."""
    cache: dict[Any, Any] = {}
    store = claim(cache, make(1))
    with pytest.raises(TypeError, match=r"lambda> 2', item\)`; or `cache_key=lambda item: item` if both"):
        claim(cache, make(2))
    assert store.name.endswith("<lambda>")
