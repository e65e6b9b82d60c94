"""Keys of the user's (`group_by`, `fair_by`, `cache_key`) that may change while their calls wait.

The hash of a key, and whether it equals another, are asked for at the door alone, where an error is that of
the call that comes. From then on a key has the hash that it had there, and two keys are equal if they were.
A key that may change equals no plain one. So nothing of the user's runs where calls are moved, and a key that
has changed is still found.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary, ref

from batched._core.call import BELONGS, Call
from batched.errors import BatchError

_FIXED = frozenset({str, int, bytes, float, bool, complex, type(None), type})
_SIMPLE: frozenset[Any] = frozenset(
    (kind.__hash__, kind.__eq__) for kind in (str, int, bytes, float, complex, object)
)

_REMEDY = "return a key that cannot change, such as a str, a number, or a tuple of these"


def key_of(value: Hashable, what: str) -> Hashable:
    """Return `value`, which the option `what` has given, or a `Key` in its place if it may change."""
    return value if _is_lasting(value) else Key(value, what)


def value_of(key: Hashable) -> Any:
    """Return the user's own key."""
    return key.value if type(key) is Key else key


def _is_lasting(value: Any) -> bool:
    """Return whether a key has the same hash for ever, and equals the same keys."""
    kind = type(value)
    try:
        if kind in _FIXED:
            return True
    except Exception:  # noqa: BLE001  of a metaclass: a class has no hash if that defines `__eq__` alone
        return False
    if kind is tuple:
        return all(map(_is_lasting, value))
    # Without methods of its own: a member of an enum, an object that equals itself alone.
    own = kind.__hash__, kind.__eq__
    return own in _SIMPLE


class Key:
    """A key of the user's with the hash that it had when it came."""

    __slots__ = ("__weakref__", "_hash", "_is_settled", "_own", "_same", "value", "what")

    def __init__(self, value: Hashable, what: str, own: Hashable = None) -> None:
        self.value: Hashable = value
        self.what: str = what
        """Names the function and the option, for errors."""
        self._own = own  # what else keeps calls apart, which is not the user's
        self._hash = hash((own, value))
        self._same: Key | None = None  # the key that it was found to be equal to, which stands for both
        self._is_settled = False  # whether it has been compared with the others that are known

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Key):  # a plain key that has the same hash
            return False
        if self._is_settled and other._is_settled:
            return (self._same or self) is (other._same or other)
        is_near = self._hash == other._hash and self._own == other._own
        return is_near and self._equals(other)

    def _equals(self, other: Key) -> bool:
        """Return whether the user's keys are equal, as one of the two comes.

        Where that cannot be told, the key that comes is to blame, unless the other cannot even be compared
        with itself: then it equals none, and fails its own call.
        """
        if self.value is other.value:  # as in a dict: pandas' NA is one object, and equals nothing
            return True
        try:
            return bool(self.value == other.value)
        except Exception as error:
            new, known = (other, self) if self._is_settled else (self, other)
            if known._is_broken() and not new._is_broken():  # noqa: SLF001
                return False
            fault = BatchError(
                f"{new.gave()} that could not be compared with another key ({type(error).__name__}: "
                f"{error}); {_REMEDY}"
            )
            raise fault from error

    def within(self, own: Hashable) -> Key:
        """Return a key that keeps apart the calls that `own` does, too."""
        return Key(self.value, self.what, own)

    def settle(self, known: KnownKeys) -> None:
        """Compare it with the keys that are `known`, for the last time; a `BatchError` says if that fails."""
        if self._is_settled:
            return
        first = known.get(self)
        same = None if first is None else first()
        if same is None:
            known[self] = ref(self)
        self._same = same
        self._is_settled = True

    def fault(self) -> BatchError | None:
        """Return the error of its call, if its hash has changed, or it fails."""
        try:
            if hash((self._own, self.value)) == self._hash:
                return None
        except Exception as error:  # noqa: BLE001  of the user's class
            fault = BatchError(
                f"{self.gave()} that could not be hashed again while the call waited "
                f"({type(error).__name__}: {error}); {_REMEDY}"
            )
            fault.__cause__ = error
            return fault
        return BatchError(f"{self.gave()}, and its hash changed while the call waited; {_REMEDY}")

    def _is_broken(self) -> bool:
        """Whether it cannot even be compared with itself."""
        try:
            bool(self.value == self.value)  # whether it can be told
        except Exception:  # noqa: BLE001  of the user's class
            return True
        return False

    def gave(self) -> str:
        """Return which callback gave a key of which type."""
        return f"{self.what} returned a key of type {type(self.value).__qualname__}"


KnownKeys = WeakKeyDictionary[Key, ref[Key]]
"""The keys of one batcher, or of one cache, that have come; each that stands for others is kept by these."""


def keys_of(call: Call) -> list[Key]:
    """Return the keys of `call` that may change."""
    return [key for slot in BELONGS if type(key := getattr(call, slot, None)) is Key]


def fault_of(call: Call) -> BatchError | None:
    """Return the error of `call` if a key of it has changed."""
    return next((fault for key in keys_of(call) if (fault := key.fault()) is not None), None)
