"""The rows of a call that ran in several batches are joined."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from batched import BatchError, inference
from tests.kit.company import company, same
from tests.kit.flavours import Flavour
from tests.kit.optional import HAS_TORCH, needs_torch, torch


def test_rows_from_several_batches_are_joined(flavour: Flavour) -> None:
    """One call of many rows is one answer, in order, whatever the size of a batch."""
    fn = flavour.decorate_arrays(lambda features: features["x"] * 2, batch_size=7, timeout_ms=0)
    x = np.arange(200).reshape(100, 2)
    assert same(flavour.call(fn, x=x), x * 2)
    assert fn.stats.total_batches == 15


@pytest.mark.parametrize(
    ("make", "small", "large"),
    [(np.ones, np.int32, np.float64), (torch.ones, torch.int32, torch.float16)],
    ids=["numpy", "torch"],
)
def test_dtypes_of_several_batches_are_joined_to_one_that_holds_both(
    make: Any, small: Any, large: Any
) -> None:
    """A function whose dtype depends on its batch gets back what numpy or torch make of both."""
    dtypes = iter([small, large, small])
    fn = inference.dynamically(lambda f: make(len(f["x"]), dtype=next(dtypes)), batch_size=2, timeout_ms=0)
    assert same(fn(x=np.zeros(6)), make(6, dtype=large))


RECORD = [("a", "i4"), ("b", "f8")]


class Marked(torch.Tensor if HAS_TORCH else object):  # type: ignore[misc]
    """A tensor of a subclass."""


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("batch_size", [2, 8])
@pytest.mark.parametrize(
    "function",
    [
        lambda features: np.matrix(features["x"]),
        lambda features: {"records": np.rec.array([(1, 2.0)] * len(features["x"]), dtype=RECORD)},
        pytest.param(lambda features: torch.from_numpy(features["x"]).as_subclass(Marked), marks=needs_torch),
        pytest.param(lambda features: torch.from_numpy(features["x"]), marks=needs_torch),
    ],
    ids=["matrix", "records", "subclass", "tensor"],
)
def test_rows_from_several_batches_have_the_class_of_one(function: Any, batch_size: int) -> None:
    """What a subclass has, such as the fields of a record array, does not depend on the number of batches."""
    fn = inference.dynamically(function, batch_size=batch_size, timeout_ms=0)
    x = np.ones((5, 2))
    answer, want = fn(x=x), function({"x": x})
    assert type(answer) is type(want)
    if isinstance(want, dict):
        assert answer["records"].a.tolist() == [1] * 5
    else:
        assert type(answer[:1]) is type(want[:1])
        assert answer.tolist() == want.tolist()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rows", [np.ones((6, 1)), [np.ones(length) for length in range(1, 7)]])
def test_some_of_several_batches_may_have_run_in_inference_mode(rows: Any, first: bool) -> None:
    """Whichever comes first, and whether their lengths differ or not."""
    modes = itertools.cycle([first, not first])

    def function(features: dict[str, Any]) -> Any:
        with torch.inference_mode(next(modes)):
            return features["x"] * 2

    fn = inference.dynamically(function, batch_size=2, timeout_ms=0)
    tensors = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else list(map(torch.from_numpy, rows))
    assert fn(x=tensors).tolist() == [[2.0] * len(row) + [0.0] * (len(rows[-1]) - len(row)) for row in rows]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda x: {"a": x}, "differently structured outputs for the batches of one call"),
        (
            lambda x: x[:, :1],
            r"rows of shape \(3,\) from one batch and of \(1,\) from another.*differ in more than padding",
        ),
        (
            torch.from_numpy,
            r"a ndarray of float64 from one batch and a Tensor of torch\.float64 .*, which cannot be joined",
        ),
        (
            lambda x: x.astype("M8[s]"),
            r"a ndarray of float64 from one .* and a ndarray of datetime64\[s\] .*, which cannot be joined",
        ),
    ],
)
def test_outputs_of_several_batches_that_cannot_be_joined_fail_their_own_call(
    flavour: Flavour, second: Any, message: str
) -> None:
    """And no other in the same batch."""
    functions = iter([lambda x: x, second])
    with company(lambda features: next(functions)(features["x"]), batch_size=3, flavour=flavour) as there:
        small, large, other = there.errors(
            {"x": np.ones((1, 3))}, {"x": np.ones((4, 3))}, {"x": np.ones((1, 3))}
        )
        assert small is None
        assert other is None
        with pytest.raises(BatchError, match=message):
            raise large
