"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flavours import FLAVOURS, STREAMING, Flavour


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Each way to call a batched function."""
    flavour = request.param()
    with flavour.running():
        yield flavour


@pytest.fixture(params=STREAMING, ids=lambda flavour: flavour.name)
def streaming(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Each way to read a stream."""
    flavour = request.param()
    with flavour.running():
        yield flavour
