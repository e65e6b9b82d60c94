"""Only calls of one signature share a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kit.company import company, itself, same
from tests.kit.flavours import Flavour
from tests.kit.optional import HAS_TORCH, torch

DISTINCT = {
    "x": {"x": np.ones((2, 3))},
    "another key": {"z": np.ones((2, 3))},
    "a key more": {"x": np.ones((2, 3)), "z": np.ones((2, 3))},
    "another order": {"z": np.ones((2, 3)), "x": np.ones((2, 3))},
    "another dtype": {"x": np.ones((2, 3), "f4")},
    "another byte order": {"x": np.ones((2, 3), ">f8")},
    "another rank": {"x": np.ones((2, 3, 1))},
    "no second axis": {"x": np.ones(2)},
    "another trailing shape": {"x": np.ones((2, 3, 2))},
    "strings": {"x": np.full((2, 3), "a")},
    "bytes": {"x": np.full((2, 3), b"a")},
    "no rows": {"x": np.ones((0, 3))},
}
if HAS_TORCH:
    DISTINCT |= {
        "torch": {"x": torch.ones(2, 3).double()},
        "another torch dtype": {"x": torch.ones(2, 3)},
        "another device": {"x": torch.ones(2, 3, device="meta")},
        "grad": {"x": torch.ones(2, 3, requires_grad=True)},
    }


def test_calls_of_different_signature_never_share_a_batch(flavour: Flavour) -> None:
    """Keys, order, dtype, rank, trailing shape, library, device: each has batches of its own."""
    with company(lambda features: list(features.values())[-1], batch_size=64, flavour=flavour) as there:
        calls = [*DISTINCT.values()] * 2
        answers = there.answers(*calls)
        for call, answer in zip(calls, answers, strict=True):
            (*_, last) = call.values()
            assert (type(answer), answer.dtype, tuple(answer.shape)) == (
                type(last),
                last.dtype,
                tuple(last.shape),
            )
        assert len(there.batches) == len(DISTINCT) + 1  # calls of no rows run each on its own
        assert len({signature(batch) for batch in there.batches}) == len(DISTINCT)


def signature(batch: dict[str, Any]) -> Any:
    return tuple(
        (
            key,
            str(x.dtype),
            str(getattr(x, "device", "")),
            getattr(x, "requires_grad", 0),
            x.shape[2:],
            x.ndim,
            not len(x),
        )
        for key, x in batch.items()
    )


@pytest.mark.parametrize(
    "bad", [name for name in DISTINCT if name not in {"x", "another byte order", "grad"}]
)
def test_calls_of_different_signature_never_fail_one_another(flavour: Flavour, bad: str) -> None:
    """A function that cannot do with one kind fails only those that bring it."""

    def function(features: dict[str, Any]) -> Any:
        if signature(features) == signature(DISTINCT[bad]):
            raise ZeroDivisionError
        return features["x"]

    with company(function, batch_size=64, flavour=flavour) as there:
        good, failed, another = there.errors(DISTINCT["x"], DISTINCT[bad], DISTINCT["x"])
        assert (good, another) == (None, None)
        assert isinstance(failed, ZeroDivisionError)
        assert len(there.batches) == 2


def test_lengths_keep_no_calls_apart(flavour: Flavour) -> None:
    """The second axis, arrays or lists: all of these are one batch."""
    calls = [
        {"x": np.ones((1, 3))},
        {"x": np.ones((2, 0))},
        {"x": [np.ones(1), np.ones(2)]},
        {"x": [np.ones(4)]},
    ]
    with company(itself, flavour=flavour) as there:
        there.answers(*calls)
        assert [batch["x"].shape for batch in there.batches] == [(6, 4)]


def test_calls_may_be_grouped_further(flavour: Flavour) -> None:
    """`group_by` gets the features as they were passed; several batches are joined and cut as ever."""
    with company(
        itself,
        batch_size=2,
        unpad_outputs={0: "x"},
        group_by=lambda features: "x" in features and features["x"].shape[1] > 4,
        flavour=flavour,
    ) as there:
        calls = [{"x": np.ones((rows, length))} for rows, length in [(1, 2), (3, 9), (1, 3), (2, 8)]]
        for call, answer in zip(calls, there.answers(*calls), strict=True):
            assert same(answer, call["x"])
        assert [batch["x"].shape for batch in there.batches] == [(2, 3), (2, 9), (2, 9), (1, 8)]


def test_keys_that_cannot_be_compared_with_others_are_keys(flavour: Flavour) -> None:
    """A call is compared with the last one, and no caller is told."""

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return other.name == "key"  # type: ignore[attr-defined]

        name = "key"

    with company(lambda features: next(iter(features.values())), flavour=flavour) as there:
        for key in ("a", Key(), "a", Key()):
            assert there.answers({key: np.ones((2, 3))})[0].shape == (2, 3)
