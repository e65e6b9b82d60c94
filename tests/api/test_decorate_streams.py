"""What a batch function that yields may be decorated with."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import pytest

import batched
import batched.inference
from tests.kit.kept import driver_of


def test_what_does_not_go_with_streams_is_refused() -> None:
    """At decoration."""

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items

    for options in ({"cache": {}}, {"cache_key": str}, {"prepare": list}, {"finish": list}):
        (name,) = options
        with pytest.raises(TypeError, match=f"^{name} cannot be used with a function that streams: "):
            batched.dynamically(generate, **options)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="cannot stream"):
        batched.inference.dynamically(generate)
    with pytest.raises(TypeError, match="max_pieces=5 is only for a function that streams"):
        batched.dynamically(lambda items: items, max_pieces=5)
    with pytest.raises(TypeError, match="continuous=True is only for a function that streams"):
        batched.dynamically(lambda items: items, continuous=True)
    with pytest.raises(TypeError, match="max_pieces cannot be used with arrays"):
        batched.inference.dynamically(lambda features: features, max_pieces=5)  # type: ignore[call-overload]


def test_a_function_that_streams_still_does_with_changed_options_and_as_a_copy() -> None:
    """Its options are of a kind of their own, which `configure` and a pickle keep."""

    def generate(items: list[int]) -> Iterator[list[int]]:
        yield items

    fn = batched.dynamically(generate)
    fn.configure(batch_size=2)
    for each in (fn, copy(fn)):
        assert driver_of(each).options.streams
        assert list(each.stream(1)) == [1]
    assert not driver_of(batched.dynamically(list)).options.streams
