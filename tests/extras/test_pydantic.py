"""A pydantic model may have batched methods: it must be told that these are no fields."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.errors import PydanticUserError

import batched
from batched import aio, inference


class Embedder(BaseModel, frozen=True):
    model_config = ConfigDict(ignored_types=(batched.BatchedFunction,))
    offset: int

    @batched.dynamically(timeout_ms=0)
    def embed(self, numbers: list[int]) -> list[int]:
        return [number + self.offset for number in numbers]


def test_each_model_has_a_batcher_of_its_own_that_is_no_part_of_its_data() -> None:
    """It is compared, dumped, copied and pickled by its fields alone; and its batcher ends with it."""
    one, two = Embedder(offset=1), Embedder(offset=2)
    assert (one.embed([1, 2]), two.embed(1)) == ([2, 3], 3)
    assert (one.embed.stats.total_processed, two.embed.stats.total_processed) == (2, 1)
    assert list(Embedder.model_fields) == ["offset"]
    assert one == Embedder(offset=1)
    assert hash(one) == hash(Embedder(offset=1))
    assert one.model_dump() == vars(one) == {"offset": 1}
    for twin in (one.model_copy(), copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert twin.embed(1) == 2
        assert twin.embed.stats.total_processed == 1
    reference = weakref.ref(two)
    del two
    gc.collect()
    assert reference() is None


def test_each_flavour_has_a_type_to_be_ignored() -> None:
    """Named as the decorator's results are, in the module of the decorator."""
    options: Any = {"timeout_ms": 0}
    ignored = (aio.BatchedFunction, inference.BatchedInference, aio.inference.BatchedInference)

    class Model(BaseModel):
        model_config = ConfigDict(ignored_types=ignored)

        @aio.dynamically(**options)
        async def on_loops(self, items: list[int]) -> list[int]:
            return items

        @inference.dynamically(**options)
        def rows(self, features: Any) -> Any:
            return features["x"]

        @aio.inference.dynamically(**options)
        async def rows_on_loops(self, features: Any) -> Any:
            return features["x"]

    async def ask() -> tuple[int, Any]:
        return await model.on_loops(3), await model.rows_on_loops(x=np.array([4]))

    model = Model()
    assert asyncio.run(ask()) == (3, [4])
    assert model.rows(x=np.array([5])) == [5]


@batched.dynamically(timeout_ms=0)
def embed(items: list[int]) -> list[int]:
    return items


def test_it_may_be_the_default_of_a_field_as_a_function_may() -> None:
    """With an annotation it is a field, with `Field` or without."""

    class Model(BaseModel):
        one: Callable[[int], int] = embed
        other: Any = Field(embed)

    model = Model()
    assert (model.one(3), model.other([3, 4])) == (3, [3, 4])
    assert model.one is model.other is embed


def test_a_model_that_is_not_told_says_what_to_write() -> None:
    """It is pydantic that does, when the class is made."""
    with pytest.raises(PydanticUserError, match="ignored_types"):

        class Model(BaseModel):
            @batched.dynamically
            def embed(self, items: list[int]) -> list[int]:
                return items
