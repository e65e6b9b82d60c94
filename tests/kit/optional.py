"""torch, or a stand-in that skips tests: there is not a build of torch for each Python."""

from __future__ import annotations

import os
from typing import Any

import pytest


class Missing:
    """Stands for a module that is missing, and for all that is in it: a test that uses any of it is skipped.

    A module of tests may use it for its parameters: outside of a test, a call of it returns it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Any:
        if "PYTEST_CURRENT_TEST" in os.environ:  # pytest's own sign that a test runs
            pytest.skip(f"needs {self._name}")
        return self

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Missing)


try:
    import torch
except ImportError:
    torch: Any = Missing("torch")  # type: ignore[no-redef]

HAS_TORCH = not isinstance(torch, Missing)
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
"""For a test, or a parameter, of which only the batch function uses torch: a skip there is its error."""


def is_missing(value: object) -> bool:
    """Whether `value`, a parameter of a test, has a part of a module that is missing."""
    if isinstance(value, dict):
        return any(map(is_missing, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_missing, value))
    return isinstance(value, Missing)
