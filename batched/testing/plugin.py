"""The fixtures that pytest finds: calls that run at once, and clocks that are turned by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batched.testing import inline, manual_clock


@pytest.fixture
def batched_inline() -> Iterator[None]:
    """Have each call of a batched function run at once, in its caller's thread: `batched.testing.inline`."""
    with inline():
        yield


@pytest.fixture
def batched_clock() -> Callable[..., Any]:
    """Make a batcher with a clock that is turned by hand: `batched.testing.manual_clock`."""
    return manual_clock
