"""The names of options, of which a decorated function has no attributes."""

from __future__ import annotations

from typing import Any

from batched._core.options import where_taken


class OptionName:
    """The name of an option, which is no attribute of a decorated function: setting it would change nothing.

    Unless the function itself has an attribute of this name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, view: object | None, owner: type | None = None) -> Any:
        if view is not None and self._name in vars(view):
            return vars(view)[self._name]
        raise self._refusal(view)

    def __set__(self, view: Any, value: object) -> None:
        if self._name not in vars(view):
            raise self._refusal(view)
        vars(view)[self._name] = value

    def __delete__(self, view: Any) -> None:
        if self._name not in vars(view):
            raise self._refusal(view)
        del vars(view)[self._name]

    def _refusal(self, view: object | None) -> AttributeError:
        what = f"a decorated function has no attribute {self._name!r}{where_taken(self._name)}"
        return AttributeError(what, name=self._name, obj=view)
