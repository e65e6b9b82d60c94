"""How calls come to drivers, where that is changed: by a deadline for a block of code, and in tests.

The methods of the drivers are replaced. So a process that changes nothing does not even ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeAlias

from batched._core.call import Call
from batched._drivers.driver import Driver
from batched._drivers.event_loop import LoopDriver
from batched._drivers.thread import ThreadDriver

Arrival: TypeAlias = Callable[[Any, Call], None]
Entry: TypeAlias = "tuple[type[Any], str]"
"""A class of drivers, and the name of a method."""

_own: dict[Entry, Callable[..., Any]] = {
    (ThreadDriver, "push"): ThreadDriver.push,
    (ThreadDriver, "push_future"): ThreadDriver.push_future,
    (LoopDriver, "post_async"): LoopDriver.post_async,
    (Driver, "expect"): Driver.expect,
}
"""The methods by which calls come, without what is called before each of them."""
_arrivals: list[Arrival] = []


def with_each(arrival: Arrival) -> None:
    """Have `arrival` called with each call and its driver from now on, before it is queued, perhaps twice."""
    _arrivals.append(arrival)
    for entry, method in _own.items():
        _install(entry, method)


def register(cls: type[Any], name: str) -> None:
    """Note that calls come to drivers of another class by the method of this name."""
    _own[cls, name] = getattr(cls, name)
    _install((cls, name), _own[cls, name])


def own(entries: Iterable[Entry]) -> dict[Entry, Callable[..., Any]]:
    """Return methods of drivers as they are by now, without what is called before each."""
    return {entry: _own.get(entry) or getattr(*entry) for entry in entries}


def put(methods: Mapping[Entry, Callable[..., Any]]) -> None:
    """Put `methods` in the place of those of drivers, also of those by which no calls come."""
    for entry, method in methods.items():
        if entry in _own:
            _own[entry] = method
            _install(entry, method)
        else:
            setattr(*entry, method)


def _install(entry: Entry, method: Callable[..., Any]) -> None:
    for arrival in _arrivals:
        method = _with(arrival, method)
    setattr(*entry, method)


def _with(arrival: Arrival, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def entered(driver: Any, call: Call, *rest: Any, **named: Any) -> Any:
        arrival(driver, call)
        return method(driver, call, *rest, **named)

    return entered
