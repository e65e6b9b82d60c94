"""Outputs are cut into the rows of each call, with one row for each row of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched import BatchError, inference
from tests.kit.company import company
from tests.kit.flavours import Flavour
from tests.kit.optional import torch


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (
            None,
            TypeError,
            "must be an array, or a dict, list or tuple of arrays, not NoneType: is a `return`",
        ),
        (3, TypeError, "not int, 3$"),
        (np.float64(3), TypeError, "not float64"),
        ("ab", TypeError, "not str"),
        (
            [1, 2],
            TypeError,
            r"its output\[0\] must be an array, .* not int: numpy.array\(results, dtype=object\)",
        ),
        ([[1], [2]], TypeError, r"its output\[0\]\[0\] must be an array"),
        (
            {"a": np.ones(2), "b": ["x", "y"]},
            TypeError,
            r"its output\['b'\]\[0\] must be an array, .* not str",
        ),
        ([], TypeError, "its output is an empty list"),
        ({}, TypeError, "its output is an empty dict"),
        ({"a": ()}, TypeError, r"f must return at least one array, not {'a': \(\)}"),
        ({"a": None}, TypeError, "f must return at least one array, not {'a': None}"),
        (iter([1]), TypeError, "not list_iterator"),
        ({1, 2}, TypeError, "not set"),
        (np.ones(()), BatchError, r"its output has shape \(\), but the batch has 2 rows"),
        (torch.ones(()), BatchError, r"its output has shape \(\)"),
        (
            np.ones(1),
            BatchError,
            r"one row for each row of the batch: its output has shape \(1,\), but the batch has 2",
        ),
        (np.ones((3, 2)), BatchError, r"\(3, 2\)"),
        (
            {"a": np.ones(2), "b": (np.ones((0, 2)),)},
            BatchError,
            r"its output\['b'\]\[0\] has shape \(0, 2\)",
        ),
        (np.ma.masked_array([1, 2]), BatchError, "its output cannot be cut into rows: masked arrays"),
        (torch.ones(2, 2).to_sparse(), BatchError, "its output cannot be cut into rows: sparse"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_outputs_that_are_not_one_row_per_row_are_an_error_at_once(
    flavour: Flavour, outputs: Any, error: Any, message: str
) -> None:
    """For every caller of that batch, and for no other; the next batch is a new one."""
    answers = iter([outputs])
    with company(
        lambda features: next(answers, features["x"]), batch_size=2, flavour=flavour, isolate_errors=False
    ) as there:
        one, two, three = there.errors({"x": np.ones((1, 3))}, {"x": np.ones((1, 3))}, {"x": np.ones((1, 3))})
        for caught in (one, two):
            with pytest.raises(error, match=message):
                raise caught
        assert three is None
        assert there.fn.stats.total_failed == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_no_output() -> None:
    """The error says so, although such a tensor cannot even tell its shape."""
    fn = inference.dynamically(
        lambda features: torch.nested.nested_tensor(list(features["x"])), name="f", timeout_ms=0
    )
    with pytest.raises(BatchError, match="^f: its output cannot be cut into rows: sparse and nested tensors"):
        fn(x=torch.ones(2, 3))
