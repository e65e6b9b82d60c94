"""Outputs keep the structure that their arrays are nested in."""

from __future__ import annotations

import threading
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from batched import inference
from tests.kit.company import Readable, company, same
from tests.kit.flavours import Flavour
from tests.kit.optional import torch


class Pair(NamedTuple):
    first: Any
    second: Any


class Each(list[Any]):
    """A list of which the attributes are those of its arrays."""

    def __getattr__(self, name: str) -> list[Any]:
        return [getattr(each, name, None) for each in self]


STRUCTURES: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x * 2,
    "dict": lambda x: {"a": x, "b": x + 1},
    "OrderedDict": lambda x: OrderedDict(b=x, a=x + 1),
    "UserDict": lambda x: UserDict(a=x),
    "list of two": lambda x: [x, x + 1],
    "list of one": lambda x: [x],
    "list with any attribute": lambda x: Each([x, x + 1]),
    "tuple": lambda x: (x, x[:, 0]),
    "namedtuple": lambda x: Pair(x, x + 1),
    "nested": lambda x: {"a": [x, (x + 1, {"b": x[:, :1]})], "c": None, "d": ()},
    "the same twice": lambda x: [x, x],
}


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
@pytest.mark.parametrize("batch_size", [2, 3, 16])
def test_outputs_keep_their_structure(flavour: Flavour, structure: str, make: Any, batch_size: int) -> None:
    """Whatever arrays are nested in, from one batch or several; a list of two is a list of two."""
    function = STRUCTURES[structure]
    blocks = [make(6).reshape(2, 3), make(15).reshape(5, 3), make(3).reshape(1, 3)]
    with company(lambda features: function(features["x"]), batch_size=batch_size, flavour=flavour) as there:
        for block, answer in zip(blocks, there.answers(*({"x": block} for block in blocks)), strict=True):
            assert nested_same(answer, function(block))


def nested_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return (
            type(one) is type(other)
            and list(one) == list(other)
            and all(nested_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(nested_same, one, other))
    return one is other or same(one, other)


def test_a_mapping_that_cannot_be_made_again_comes_as_a_dict() -> None:
    """Its values are right all the same, and the function's own object is left as it was."""
    outputs = Readable(a=np.ones((3, 1)))
    fn = inference.dynamically(
        lambda features: outputs if len(features["x"]) == 3 else {}, batch_size=3, timeout_ms=0
    )
    assert same(fn(x=np.zeros(3)), {"a": np.ones((3, 1))})
    proxied = inference.dynamically(lambda features: MappingProxyType({"a": features["x"]}), timeout_ms=0)
    assert same(proxied(x=np.ones(2)), {"a": np.ones(2)})


class Stored(MutableMapping[str, Any]):
    """A mapping around a dict, which copies of it share."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Slotted(Stored):
    """The same, without a dictionary for its attributes."""

    __slots__ = ("_items",)


class Distant(Stored):
    """The same around an object that has the dict."""

    def __init__(self, **items: Any) -> None:
        self._inner = Stored(**items)

    @property
    def _items(self) -> Any:  # type: ignore[override]
        return self._inner


class WithOwner(dict[str, Any]):
    """A dict with an attribute that cannot be copied."""

    owner = None

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.owner = OWNER


OWNER = threading.Lock()


class WithAttributes(dict[str, Any]):
    """A dict of which the items are attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


@pytest.mark.parametrize("kind", [Stored, Slotted, Distant, WithOwner, WithAttributes])
def test_callers_share_nothing_of_a_mapping_of_any_class(kind: type[Any]) -> None:
    """Neither the dict that it keeps its items in, nor its attributes: each has the rows of its caller."""
    made = []

    def function(features: dict[str, Any]) -> Any:
        made.append(kind(a=features["x"], b={"c": features["x"] + 1}))
        return made[-1]

    with company(function) as there:
        for value, answer in enumerate(there.answers(*({"x": np.full(2, value)} for value in range(3)))):
            assert type(answer) is (dict if kind is Distant else kind)
            assert same(dict(answer), {"a": np.full(2, value), "b": {"c": np.full(2, value + 1)}})
            if isinstance(answer, WithAttributes):
                assert same(vars(answer), dict(answer))
            if isinstance(answer, WithOwner):
                assert answer.owner is OWNER
    assert made[-1]["a"].tolist() == [0, 0, 1, 1, 2, 2]


def test_torchs_own_named_results_keep_their_names() -> None:
    """`max` along an axis returns values and indices."""
    with company(lambda features: features["x"].max(dim=1)) as there:
        one, two = there.answers({"x": torch.tensor([[1, 3]])}, {"x": torch.tensor([[5, 3], [1, 2]])})
    assert (one.values.tolist(), one.indices.tolist()) == ([3], [1])
    assert (two.values.tolist(), two.indices.tolist()) == ([5, 2], [0, 1])


@pytest.mark.libraries
def test_a_models_output_is_one_for_each_caller() -> None:
    """With attributes, keys and positions; what the model left out is left out."""
    two, one = torch.ones(2, 3), torch.ones(1, 3)
    outputs = pytest.importorskip("transformers.modeling_outputs")  # which has none without torch

    def model(features: dict[str, Any]) -> Any:
        x = features["x"]
        return outputs.BaseModelOutputWithPooling(
            last_hidden_state=x[:, :, None].float(),
            pooler_output=x.sum(1),
            hidden_states=(x, x + 1),
            attentions=(),  # as many a model has it that was asked for them in vain
        )

    for batch_size in (1, 8):
        with company(model, batch_size=batch_size, unpad_outputs={"last_hidden_state": "x"}) as there:
            short, long = there.answers({"x": two}, {"x": one})
            assert type(short) is outputs.BaseModelOutputWithPooling
            assert short.last_hidden_state.shape == short["last_hidden_state"].shape == (2, 3, 1)
            assert long[1].tolist() == [3.0]
            assert [state.shape for state in long.hidden_states] == [(1, 3), (1, 3)]
            assert list(long) == ["last_hidden_state", "pooler_output", "hidden_states", "attentions"]
            assert long.attentions == ()
