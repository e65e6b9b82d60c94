"""Attributes that a decorated function has not, and what to write instead."""

from __future__ import annotations

from typing import Any


class Absent:
    """An attribute that is not there: an `AttributeError` says what to write, also where it is set.

    Unless the function itself has an attribute of this name.
    """

    def __init__(self, name: str, message: str) -> None:
        self._name = name
        self._message = message

    def __get__(self, view: object | None, owner: type | None = None) -> Any:
        return self._attributes(view)[self._name]

    def __set__(self, view: Any, value: object) -> None:
        self._attributes(view)[self._name] = value

    def __delete__(self, view: Any) -> None:
        del self._attributes(view)[self._name]

    def _attributes(self, view: object | None) -> dict[str, Any]:
        """Return the attributes of the function, which this is one of; raise if it is not."""
        if view is None or self._name not in vars(view):
            raise AttributeError(self._message, name=self._name, obj=view)
        return vars(view)
