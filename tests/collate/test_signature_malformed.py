"""A malformed call of arrays fails alone, at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched import inference
from tests.kit.company import Readable, company, itself, same
from tests.kit.flavours import Flavour
from tests.kit.gate import PATIENCE_S
from tests.kit.optional import torch

MALFORMED = [
    (
        {"x": np.ones(2), "y": np.ones((3, 1))},
        ValueError,
        r"the same number of rows, got 'x': \(2,\) float64, 'y': \(3, 1\) float64",
    ),
    (
        {"x": [np.ones(2)], "y": np.ones(2)},
        ValueError,
        r"got 'x': a list of \(2,\) float64, 'y': \(2,\) float64",
    ),
    (
        {"x": np.ones(2), "y": 3},
        TypeError,
        "'y' must be a numpy array, a torch tensor or a list of either, got int",
    ),
    (
        {"x": [1, 2]},
        TypeError,
        "'x' must be .* got a list of int, int: a list must hold arrays of .*, one per row; numpy.asarray",
    ),
    ({"x": []}, TypeError, "'x' must be .* got an empty list"),
    ({"x": (np.ones(2),)}, TypeError, "got tuple: convert it first"),
    ({"x": np.ones(())}, TypeError, r"got \(\) float64: it has no axis for the rows"),
    ({"x": torch.ones(())}, TypeError, r"got \(\) torch.float32: it has no axis for the rows"),
    ({"x": np.ma.masked_array([1])}, TypeError, "masked arrays would lose their mask"),
    ({"x": [np.ones(1), np.ma.masked_array([1.0])]}, TypeError, "masked arrays would lose their mask"),
    ({"x": torch.ones(2, 2).to_sparse()}, TypeError, "sparse and nested tensors are not supported"),
    ({"x": [[1, 2], [3]]}, TypeError, 'one per row; .* a tokenizer does with return_tensors="np"$'),
    ({"x": [np.ones(2), torch.ones(3)]}, TypeError, "a list must hold arrays of one library, one per row$"),
    (
        {"x": [np.ones(2), np.ones(3, "f4")]},
        ValueError,
        r"rows of 'x' must have the same dtype, .* got \(2,\) float64, \(3,\) f",
    ),
    (
        {"x": [np.ones(2), np.ones((3, 1))]},
        ValueError,
        r"same dtype, device and rank, got \(2,\) float64, \(3, 1\)",
    ),
    ({"x": [torch.ones(2), torch.ones(2, device="meta")]}, ValueError, "same dtype, device and rank"),
    ({"x": None}, TypeError, "got NoneType: it has no rows, so leave it out"),
    ({"x": np.ones(1), "modality": "text"}, TypeError, "'modality' must be .* got str: it has no rows"),
]


@pytest.mark.parametrize(("call", "error", "message"), MALFORMED)
def test_a_malformed_call_fails_alone(flavour: Flavour, call: Any, error: Any, message: str) -> None:
    """At the door, with the key and what it held; a call that waits for the same batch is not touched."""
    with company(itself, flavour=flavour) as there:
        future = flavour.start(there.fn, x=np.ones((1, 2)))
        with pytest.raises(error, match=f"^f: .*{message}"):
            flavour.call(there.fn, call)
        there.gate.open()
        assert same(future.result(PATIENCE_S), np.ones((1, 2)))
        assert there.fn.stats.total_failed == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_refused() -> None:
    """Although it cannot even tell its shape."""
    fn = inference.dynamically(itself, timeout_ms=0)
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(
        TypeError, match="'x' must be .* got Tensor: sparse and nested tensors are not supported"
    ):
        fn(x=nested)


def test_a_mapping_that_breaks_fails_its_caller_alone(flavour: Flavour) -> None:
    """Whatever it raises."""

    class Broken(Readable):
        def __getitem__(self, key: str) -> Any:
            raise OSError("disk")

    fn = flavour.decorate_arrays(itself, timeout_ms=0)
    with pytest.raises(OSError, match="disk"):
        flavour.call(fn, Broken(x=1))
    assert same(flavour.call(fn, x=np.ones(1)), np.ones(1))
    [kept] = flavour.map(fn.options(return_exceptions=True), [Broken(x=1)])
    assert isinstance(kept, OSError)
