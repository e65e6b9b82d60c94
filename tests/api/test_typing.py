"""The types to annotate with are there at run time too, where dataclasses and frameworks read them."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

import batched
from batched import aio, typing


@pytest.mark.parametrize("name", typing.__all__)
def test_an_annotation_can_be_read(name: str) -> None:
    """With the name alone, and with another type beside it."""

    def function(one: Any, either: Any) -> None: ...

    function.__annotations__ = {"one": f"typing.{name}", "either": f"typing.{name} | None"}
    assert get_type_hints(function, {"typing": typing})["one"] == getattr(typing, name)


@pytest.mark.parametrize("module", [typing, aio], ids=lambda module: module.__name__)
def test_decorated_functions_take_the_types_of_their_items(module: Any) -> None:
    """As many as type checkers say."""
    for name, types in (("BatchedColumns", 3), ("BatchedMethod", 3), ("StreamingFunction", 2)):
        parameters = (str, int, bytes)[:types]
        assert getattr(module, name)[parameters].__args__ == parameters


def test_at_run_time_decorated_functions_are_of_one_class() -> None:
    """Each has a subclass of its own, for its name; the other classes are for annotations only."""

    def columns(words: list[str], weights: list[int]) -> list[int]:
        return weights

    def stream(words: list[str]) -> Any:
        yield words

    for package, module in ((batched, typing), (aio, aio)):
        assert type(package.dynamically(columns)).__base__ is package.BatchedFunction
        assert type(package.dynamically(stream)).__base__ is package.BatchedFunction
        for kind in (module.BatchedColumns, module.StreamingFunction):
            assert "at run time it is a `BatchedFunction`" in kind.__doc__
