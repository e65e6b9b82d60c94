"""What is said of arguments of `batched.Workers` that are none: the value, and what it must be."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import batched


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ((0,), ValueError, "there must be at least 1 worker, got 0"),
        (([],), ValueError, r"there must be at least 1 worker, got \[\]"),
        (("cuda:0",), TypeError, "a number, or a list of names, got 'cuda:0'"),
        ((True,), TypeError, "a number, or a list of names, got True"),
        ((1.5,), TypeError, "a number, or a list of names, got 1.5"),
        (([0],), TypeError, "the name of a worker must be a string, got 0"),
        ((["a", "b", "a"],), ValueError, "names of workers must differ, 'a' was given twice"),
    ],
)
def test_what_is_no_number_and_no_names(given: tuple[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        batched.Workers(*given)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (0, ValueError, "more than 0, got 0"),
        (-1.5, ValueError, "more than 0, got -1.5"),
        (float("inf"), ValueError, "weight must be a finite number, got inf"),
        (float("nan"), ValueError, "weight must be a finite number, got nan"),
        pytest.param(10**400, ValueError, "weight must be a finite number, got inf", id="10**400"),
        ("3", TypeError, "weight must be a number, got '3'"),
        (True, TypeError, "weight must be a number, got True"),
    ],
)
def test_what_is_no_weight(weight: Any, error: type[Exception], message: str) -> None:
    """Infinity is more than 0, so this is not what is wrong with it."""
    with pytest.raises(error, match=message):
        batched.Workers(1).weighted(weight)


@pytest.mark.parametrize(
    "weight", [2, 2.0, Fraction(2), np.float32(2)], ids=["int", "float", "fraction", "numpy"]
)
def test_any_number_may_be_a_weight(weight: Any) -> None:
    """As with options that are numbers; it becomes Python's own."""
    weighted = batched.Workers(1).weighted(weight).weight
    assert (weighted, type(weighted)) == (2.0, float)


@pytest.mark.parametrize("initializer", ["load", lambda: 3, lambda name, path: path, divmod])
def test_an_initializer_that_takes_no_name_is_refused(initializer: Any) -> None:
    """Before a worker starts: else each call would have the error."""
    with pytest.raises(TypeError, match="initializer must be a function of a worker's name, got "):
        batched.Workers(1, initializer=initializer)


@pytest.mark.parametrize("initializer", [str, lambda *names: names, lambda name, path="": name, print])
def test_any_callable_that_takes_a_name_initializes(initializer: Any) -> None:
    """A class, or a function with parameters besides."""
    batched.Workers(1, initializer=initializer).shutdown()
