"""What a function over arrays may return: an array, or mappings, lists and tuples of arrays.

`flatten` takes the arrays out of the outputs; `rebuild` nests other arrays, such as a caller's rows, alike.
"""

from __future__ import annotations

import copy
import reprlib
from collections import UserDict, UserList, deque
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from batched._collate.libraries import Array, library_of
from batched._collate.misanswers import remedy
from batched._policy.out_of_memory import is_out_of_memory
from batched.errors import ResultTypeError


class Leaf(NamedTuple):
    """An array, and the keys and positions that lead to it: none if the function returned just this array."""

    path: tuple[Any, ...]
    array: Array

    def __str__(self) -> str:
        return "its output" + "".join(f"[{step!r}]" for step in self.path)


@dataclass(slots=True)
class _Node:
    """A mapping, list or tuple; `like` is the object that the function returned."""

    like: Any = field(compare=False)
    kind: type
    steps: tuple[Any, ...]
    children: list[Shape]


Shape: TypeAlias = "_Node | bool"
"""How arrays are nested: True for an array, False for a None among them."""


def flatten(outputs: Any, leaves: list[Leaf], path: tuple[Any, ...] = ()) -> Shape:
    """Append the arrays in `outputs` to `leaves`; return how they are nested. `TypeError` for others."""
    if library_of(outputs) is not None:
        leaves.append(Leaf(path, outputs))
        return True
    if isinstance(outputs, Mapping):
        steps = tuple(outputs)
        children = [outputs[step] for step in steps]
    elif isinstance(outputs, list | tuple):
        steps = tuple(range(len(outputs)))
        children = list(outputs)
    elif outputs is None and path:
        return False
    else:
        kind = type(outputs).__qualname__
        # In a list, it may be the result for one row.
        told = ": numpy.array(results, dtype=object) makes an array of results of any kind"
        if not path:
            told = remedy(outputs) if isinstance(outputs, Awaitable | None) else f", {reprlib.repr(outputs)}"
        raise ResultTypeError(
            f"{Leaf(path, None)} must be an array, or a dict, list or tuple of arrays, not {kind}{told}"
        )
    if not children and not path:
        raise ResultTypeError(f"{Leaf(path, None)} is an empty {type(outputs).__qualname__}: it has no rows")
    nested = [flatten(child, leaves, (*path, step)) for step, child in zip(steps, children, strict=True)]
    return _Node(outputs, type(outputs), steps, nested)


def rebuild(shape: Shape, arrays: Iterator[Any]) -> Any:
    """Return `arrays`, nested as `shape` says."""
    if shape is True:
        return next(arrays)
    if not isinstance(shape, _Node):
        return None
    return with_children(shape.like, shape.steps, [rebuild(child, arrays) for child in shape.children])


CONTAINERS = (list, tuple, dict, UserDict, UserList, deque)


def parts_of(whole: Any) -> Sequence[Any]:
    """Return the elements or values of one of `CONTAINERS`, or the values of an instance's fields."""
    kind = type(whole)
    if issubclass(kind, dict):
        return list(whole.values())
    if issubclass(kind, list | tuple):
        return whole  # type: ignore[no-any-return]
    if issubclass(kind, UserDict | UserList):  # not what it has besides: such objects may lead to each other
        return parts_of(attributes(whole)["data"])
    # Not what its class has: a `ClassVar` is one of the fields.
    return list(whole if issubclass(kind, deque) else attributes(whole).values())


def with_parts(whole: Any, parts: Sequence[Any]) -> Any:
    """Return a copy of `whole` with other `parts`, in the order of `parts_of`."""
    kind = type(whole)
    if issubclass(kind, list | tuple | dict):
        return with_children(whole, whole, parts)
    made = copy.copy(whole)
    if issubclass(kind, UserDict | UserList):
        made.data = with_parts(attributes(whole)["data"], parts)
    elif issubclass(kind, deque):
        for at, part in enumerate(parts):
            made[at] = part
    else:
        for name, part in zip(attributes(whole), parts, strict=True):
            try:
                object.__setattr__(made, name, part)  # a frozen one too
            except TypeError:  # msgspec freezes its classes in C
                getattr(kind, name).__set__(made, part)
    return made


def with_children(like: Any, steps: Iterable[Any], children: Sequence[Any]) -> Any:
    """Return a mapping with the keys `steps`, a list or a tuple, as `like` is one, of these `children`."""
    if isinstance(like, Mapping):
        return _mapping(like, dict(zip(steps, children, strict=True)))
    if hasattr(type(like), "_make"):
        return like._make(children)
    if hasattr(type(like), "n_sequence_fields"):  # for example what `torch.max(x, dim=1)` returns
        return type(like)(children)
    return _sequence(like, children)


def _sequence(like: list[Any] | tuple[Any, ...], children: Sequence[Any]) -> list[Any] | tuple[Any, ...]:
    """Return `children` in a list or tuple of the type of `like`; in a plain one if that fails."""
    plain = list(children) if isinstance(like, list) else tuple(children)
    if type(like) in {list, tuple}:
        return plain
    made: Any
    try:
        if isinstance(like, tuple):
            made = tuple.__new__(type(like), children)
            for name, value in attributes(like).items():
                object.__setattr__(made, name, value)
        else:
            made = copy.copy(like)
            if made is like:
                return plain
            list.__setitem__(made, slice(None), children)
        _part(made, dict(zip(map(id, like), children, strict=True)))
    except Exception as error:  # a class that cannot be copied
        if is_out_of_memory(error):
            raise
        return plain
    return made  # type: ignore[no-any-return]


def _mapping(like: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return `values` in a mapping of the type of `like`, such as `ModelOutput`; in a dict if that fails."""
    if type(like) is dict:
        return values
    try:
        theirs = [like[key] for key in values]
        made: Any = copy.copy(like)
        _part(made, dict(zip(map(id, theirs), values.values(), strict=True)))
        for key, value in values.items():
            made[key] = value
        if any(like[key] is not value for key, value in zip(values, theirs, strict=True)):
            _take_back(like, values, theirs)
            return values
    except Exception as error:  # a class that is read-only, or cannot be copied
        if is_out_of_memory(error):
            raise
        return values
    return values if made is like else made


def _part(made: Any, others: dict[int, Any]) -> None:
    """Have a copy share neither what the original keeps its items in, nor attributes that are items."""
    for name, value in attributes(made).items():
        if id(value) in others:
            object.__setattr__(made, name, others[id(value)])
        elif isinstance(value, dict | list):
            object.__setattr__(made, name, copy.copy(value))


def _take_back(like: Any, values: dict[Any, Any], theirs: list[Any]) -> None:
    """Give a mapping its own items back, where it has got those of its copy."""
    for (key, value), before in zip(values.items(), theirs, strict=True):
        if like[key] is value:
            like[key] = before


def attributes(thing: Any) -> dict[str, Any]:
    """Return what an object has in its dictionary, and in its slots."""
    state: Any = object.__getstate__(thing)
    own, slots = state if isinstance(state, tuple) else (state, None)
    return {**(own or {}), **(slots or {})}
