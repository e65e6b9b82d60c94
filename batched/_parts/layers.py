"""Layers in front of a collator: `group_by` divides calls by key, `length` puts their items in order."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import partial
from math import inf
from numbers import Real
from typing import Any

from batched._collate.item_length import has_fields, length_of
from batched._core.batch import Batch
from batched._core.call import Call, Wrapper, note_of_item
from batched._core.collator import Divisible, InFront
from batched._core.keys import Key, key_of
from batched._core.parameters import signature_of
from batched._parts.divided import divide
from batched._policy.lengths import extent_of
from batched.errors import BatchError

_MOST = 1 << 53  # the longest item: lengths of a batch, and their squares, add up to what a float holds


GIVEN_TENANT: ContextVar[tuple[Hashable] | None] = ContextVar("GIVEN_TENANT", default=None)
"""The tenant of the call that is read just now, if a server gives it: then `fair_by` is not asked."""


class Layer:
    """What knows a value of each item of a call, and changes the call by these values."""

    def values(self, call: Call) -> list[Any]:
        """Return what it knows of each item of `call`; `call` may be told of it, too."""
        return [None] * call.size

    def applied(self, call: Call, values: list[Any]) -> Call:  # noqa: ARG002  as most layers need it
        """Return `call` with these values, or divided by them."""
        return call

    def note(self, batch: Batch) -> None:
        """Look at a batch that is about to run."""


class Grouping(Layer):
    """A layer: calls have the key that `group_by` gives, or are divided by it."""

    def __init__(self, collator: Divisible, group_by: Callable[..., Hashable], name: str) -> None:
        self._collator = collator
        self._group_by = group_by
        self._takes_item = takes_item(group_by)
        self._name = name
        self._what = f"{name}: group_by"

    def values(self, call: Call) -> list[Any]:
        """Return the key of each item; if that is one for all, `call` knows it."""
        if not call.size:
            return []
        own = getattr(call, "key", None)
        asked = partial(key_from, self._group_by, self._what)
        if self._takes_item:
            found = of_each(asked, self._collator, call, self._name)
            keys = [self._with(own, key) for key in found]
        else:
            keys = [self._with(own, asked((), {}))] * call.size
        if len(set(keys)) == 1:
            call.key = keys[0]
        elif own is not None:
            del call.key
        return keys

    def applied(self, call: Call, values: list[Any]) -> Call:
        """Return `call` with its key, or divided into parts with their keys."""
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(values):
            places.setdefault(key, []).append(place)
        if len(places) <= 1:
            call.key = next(iter(places), None)
            return call
        parted = divide(call, places.values(), self._collator.pick)
        for key, part in zip(places, parted.parts, strict=True):
            part.key = key
        return parted

    def _with(self, own: Hashable, key: Hashable) -> Hashable:
        """Return what a key and the one that the call has of its `own` are together."""
        if type(key) is not Key:
            return own, key
        return key if own is None else key.within(own)


class Sharing(Layer):
    """A layer: calls know the tenant that `fair_by`, if there is one, gives for their first item."""

    def __init__(self, collator: Divisible, fair_by: Callable[..., Hashable] | None, name: str) -> None:
        self._collator = collator
        self._fair_by = fair_by
        self._takes_item = fair_by is not None and takes_item(fair_by)
        self._what = f"{name}: fair_by"
        self.takes_given: bool = False
        """Whether the function is served: then its server gives calls of clients their tenant."""

    def values(self, call: Call) -> list[Any]:
        """Have `call` know its tenant, if it has one; return that for each item."""
        given = GIVEN_TENANT.get() if self.takes_given else None
        if given is not None:
            (call.tenant,) = given
            return [call.tenant] * call.size
        if self._fair_by is None:
            return [None] * call.size
        first = next(iter(self._collator.items(call)), None)
        if first is None:  # an empty list, which is not queued
            return []
        args, named = first if self._takes_item else ((), {})
        call.tenant = key_from(self._fair_by, self._what, args, named)
        return [call.tenant] * call.size


class Measuring(Layer):
    """A layer: calls know the lengths of their items.

    The items of a list are put in order of length, the longest first, so that batches of it have items of
    like length. Their answers are put back into the order of the list.
    """

    def __init__(self, collator: Divisible, length: Callable[..., Any] | None, name: str) -> None:
        self._collator = collator
        self._length = _len_of_item if length is None else length
        self._sorts = length is not None
        self._name = name

    def values(self, call: Call) -> list[Any]:
        """Return the length of each item of `call`."""
        return of_each(self._length_of, self._collator, call, self._name)

    def _length_of(self, args: tuple[Any, ...], named: dict[str, Any]) -> float:
        what = "length" if self._sorts else "length (len by default)"
        length = _answer_of(self._length, f"{self._name}: {what}", args, named)
        if type(length) is int and 0 <= length <= _MOST:
            return length
        try:
            number = float(length) if isinstance(length, Real) else -1.0
        except Exception:  # noqa: BLE001  an integer that is larger than any float, or a class of the user's
            number = inf
        if not 0.0 <= number <= _MOST:
            raise BatchError(
                f"{self._name}: length must return a number from 0 to 2**53, got {_shown(length)}"
            )
        return number

    def applied(self, call: Call, values: list[Any]) -> Call:
        """Return `call` with the lengths of its items, and the items of each part in order of length."""
        if call.parts:
            for part in call.parts:
                part.lengths = [values[place] for place in part.places]  # type: ignore[attr-defined]
        else:
            call.lengths = values if call.many else values[0]
        if not self._sorts or not call.many or call.size < 2:  # noqa: PLR2004  one item is in order
            return call
        if not call.parts:
            unordered = call
            call = divide(call, [list(range(call.size))], self._collator.pick)
            call.parts[0].lengths = unordered.lengths
        for part in call.parts:
            lengths: Any = part.lengths
            order = sorted(range(part.size), key=lengths.__getitem__, reverse=True)
            part.lengths = [lengths[place] for place in order]
            part.inputs = self._collator.pick(part.inputs, order)
            part.places = [part.places[place] for place in order]  # type: ignore[attr-defined]
        return call

    def note(self, batch: Batch) -> None:
        """Count the lengths of the items, and what they add up to if padded to the longest."""
        longest, real = extent_of(batch.slices)
        batch.real += round(real)
        batch.padded += round(longest * batch.size)


class LayeredCollator(InFront):
    """Another collator, with layers in front of it."""

    def __init__(self, collator: Divisible, layers: list[Layer]) -> None:
        super().__init__(collator)
        self.layers = layers

    def own(self, call: Call) -> None:
        """Copy the inputs that the caller could still change."""
        for part in call.parts or (call,):
            self.inner.own(part)

    def take_given_tenants(self) -> None:
        """Have calls of `GIVEN_TENANT`, where there is one, and ask `fair_by` for the others."""
        for layer in self.layers:
            if isinstance(layer, Sharing):
                layer.takes_given = True

    def collate(self, batch: Batch) -> Any:
        """Return the batch function's argument."""
        for layer in self.layers:
            layer.note(batch)
        return self.inner.collate(batch)

    def _made(self, make: Callable[..., Call], function: Wrapper, *args: Any) -> Call:
        call = make(function, *args)
        return self._applied(call, self._values(call))

    def _values(self, call: Call) -> list[list[Any]]:
        """Return what each layer knows of each item of `call`."""
        return [layer.values(call) for layer in self.layers]

    def _applied(self, call: Call, values: list[list[Any]]) -> Call:
        # A call that was read before the function was served has no tenant.
        for layer, its_values in zip(self.layers, values, strict=False):
            call = layer.applied(call, its_values)
        return call


def of_each(
    ask: Callable[[tuple[Any, ...], dict[str, Any]], Any], collator: Divisible, call: Call, name: str
) -> list[Any]:
    """Return what `ask` returns for each item of `call`; an error says for which of them it was raised."""
    answers: list[Any] = []
    try:
        for args, named in collator.items(call):
            answers.append(ask(args, named))
    except Exception as error:
        note = note_of_item(len(answers), sum(1 for _ in collator.items(call)))
        if note is not None:
            error.add_note(note.format(name=name))
        raise
    return answers


def key_from(
    callback: Callable[..., Hashable], what: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Hashable:
    """Return the key that a callback of the user's gives for an item."""
    key: Hashable = _answer_of(callback, what, args, named)
    kept: Hashable = _answer_of(key_of, what, (key, what), {})  # it asks for the hash, which may fail
    return kept


def _answer_of(callback: Callable[..., Any], what: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return what a callback of the user's, called `what`, returns for an item."""
    try:
        return callback(*args, **named)
    except Exception as error:
        raise BatchError(f"{what} failed: {type(error).__name__}: {error}") from error


def _shown(value: object) -> str:
    """Return a value, shortened, as an error shows it."""
    if isinstance(value, int) and abs(value) > _MOST:  # Python refuses to write out a very long one
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def takes_item(callback: Callable[..., Any]) -> bool:
    """Whether a callback of the user's is asked with an item: not if it has no parameters."""
    if isinstance(getattr(callback, "__self__", None), ContextVar):
        return False  # its `get` would return the item, where the variable is not set
    try:
        return bool(signature_of(callback).parameters)
    except (TypeError, ValueError):  # some callables in C have no signature
        return True


def _len_of_item(*columns: Any, **named: Any) -> int:
    """Return the `len` of an item, or that of the texts and arrays in its columns, tuple, dict or model."""
    first, *others = (*columns, *named.values())
    if not others:
        return _len_of(first)
    lengths = [length for column in (first, *others) if (length := length_of(column)) is not None]
    return sum(lengths) if lengths else len(first)


def _len_of(item: Any) -> int:
    kind = type(item)
    # A list is as long as it says: it may be one of tokens, which are texts.
    length = length_of(item) if issubclass(kind, tuple | dict) or has_fields(kind) else None
    return len(item) if length is None else length
