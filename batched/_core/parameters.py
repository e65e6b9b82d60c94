"""What functions of the user's say of their parameters.

From Python 3.14 on, annotations may have names that come later in their module, or never, as those that only
type checkers import. They are forward references here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, iscoroutinefunction, signature
from typing import Any

_IS_LAZY = sys.version_info >= (3, 14)
_LATER: dict[str, Any] = {}
if _IS_LAZY:
    _annotationlib: Any = import_module("annotationlib")  # `inspect` imports it too
    _LATER["annotation_format"] = _annotationlib.Format.FORWARDREF


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> Signature:
    """Return the signature of a function; `TypeError` or `ValueError` if it has none, as some in C."""
    return signature(function, follow_wrapped=follow_wrapped, **_LATER)


def is_async_def(function: object) -> bool:
    """Whether a function of the user's is `async def`."""
    try:
        return iscoroutinefunction(function)
    except Exception:  # noqa: BLE001  a mock or a proxy that says it is a function: it has no code
        return False


def annotations_of(function: Any) -> Any:
    """Return the annotations of a function; one in C has none."""
    if _IS_LAZY and hasattr(function, "__annotate__"):
        return _annotationlib.get_annotations(function, format=_annotationlib.Format.FORWARDREF)
    return getattr(function, "__annotations__", {})
