"""The options of single calls: a view changes them, and each of its calls has them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from batched._api.decorate import check_names
from batched._core.options import CallOptions, live_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from batched._core.call import Call

__all__ = ["apply_options", "changed"]


def changed(options: CallOptions, changes: Mapping[str, object]) -> CallOptions:
    """Return `options` with `changes`."""
    found = None
    try:  # noqa: SIM105  `suppress` would take longer than the rest
        found = _known(options, **changes)
    except TypeError:  # a value is not hashable, or refused
        pass
    # Outside the `except`: the error that is raised here has no other as its context.
    return found or _known.__wrapped__(options, **changes)


# Callers that give the same options with every call give equal ones.
@lru_cache(maxsize=128, typed=True)
def _known(options: CallOptions, /, **changes: Any) -> CallOptions:
    check_names("options has no option", "has", changes, live_options(CallOptions))
    return replace(options, **changes)


def apply_options(options: CallOptions, call: Call) -> None:
    """Give `call`, and the calls that are its parts, `options`."""
    if options.deadline_ms is not None:
        call.deadline = call.arrived + options.deadline_ms / 1000
    if options.priority is not None:
        call.bulk = options.priority == "bulk"
    call.keep_errors = options.return_exceptions
    for part in call.parts:
        part.deadline, part.bulk = call.deadline, call.bulk
        part.keep_errors = call.keep_errors
