"""Whatever else is in its batches, a call of arrays gets what the function makes of its own rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.company import company, is_numpy, joined, rows_of, same
from tests.kit.effort import times
from tests.kit.flavours import Flavour
from tests.kit.optional import torch


def tokens_and_sums(features: dict[str, Any]) -> dict[str, Any]:
    """Row-wise and blind to padding: each token as it is, and the sum of those that the mask lets through."""
    x, mask = features["x"], features["mask"]
    there = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
    masked = (
        np.where(there, x, np.zeros((), x.dtype))
        if is_numpy(x)
        else torch.where(there, x, torch.zeros_like(x))
    )
    return {"tokens": x, "sums": masked.sum(1), "weights": (features["weight"] * 2,)}


NUMPY_DTYPES = ["i8", "u1", "?", "f2", "f4", ">f8", ">i2", "c8"]


TORCH_DTYPES = [
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
]


@st.composite
def calls_of_many_kinds(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls that may share a batch, and others that may not."""
    kinds = draw(
        st.lists(
            st.tuples(
                st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES),
                st.lists(st.integers(0, 3), max_size=2).map(tuple),
            ),
            min_size=1,
            max_size=3,
        )
    )
    calls = []
    for number in range(draw(st.integers(1, 8))):
        dtype, trailing = draw(st.sampled_from(kinds))
        lengths = draw(st.lists(st.integers(0, 6), max_size=5))
        ragged = draw(st.booleans()) and lengths
        if not ragged:
            lengths = [max(lengths, default=2)] * len(lengths)
        shapes = [(length, *trailing) for length in lengths]
        rows = [array(dtype, shape, number + 3 * index) for index, shape in enumerate(shapes)]
        masks = [like(row, np.arange(len(row)) % 3 != number % 3) for row in rows]
        weight = array(dtype, (len(rows),), number)
        if ragged:
            calls.append({"x": rows, "mask": masks, "weight": weight})
        else:
            empty = array(dtype, (0, 2, *trailing), 0), like(weight, np.zeros((0, 2), bool))
            x, mask = (rows_of(rows), rows_of(masks)) if rows else empty
            calls.append({"x": x, "mask": mask, "weight": weight})
    return calls


def array(dtype: Any, shape: tuple[int, ...], start: int) -> Any:
    """Return small whole numbers, whose sums are exact in every dtype."""
    values = (np.arange(np.prod(shape, dtype=int)) * 7 + start).reshape(shape) % 5
    return values.astype(dtype) if isinstance(dtype, str) else torch.from_numpy(values).to(dtype)


def like(row: Any, values: Any) -> Any:
    return values if is_numpy(row) else torch.from_numpy(values)


def alone(features: dict[str, Any]) -> Any:
    """Return what the function itself makes of a call; if its rows may differ, of each row on its own."""
    if not isinstance(features["x"], list):
        return tokens_and_sums(features)
    rows = [
        tokens_and_sums(
            {
                key: value[index][None] if isinstance(value, list) else value[index : index + 1]
                for key, value in features.items()
            }
        )
        for index in range(len(features["x"]))
    ]
    tokens = [row["tokens"] for row in rows]
    return {
        "tokens": [row[0] for row in tokens] if len({row.shape for row in tokens}) > 1 else joined(tokens),
        "sums": joined([row["sums"] for row in rows]),
        "weights": (features["weight"] * 2,),
    }


# The fixture has no state that one example could leave to the next.
@settings(max_examples=times(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    calls=calls_of_many_kinds(),
    batch_size=st.integers(1, 9),
    side=st.sampled_from(["left", "right"]),
    pad=st.sampled_from([0, 1, {"x": 1}, {"nobody has it": -3.5}]),
    multiple=st.sampled_from([None, 1, 4]),
    unpad=st.sampled_from([{"tokens": "x"}, {"tokens": "mask"}]),
)
def test_company_is_invisible(  # noqa: PLR0913, PLR0917
    flavour: Flavour, calls: list[Any], batch_size: int, side: Any, pad: Any, multiple: Any, unpad: Any
) -> None:
    """Whatever else is in its batches, a call gets what the function makes of its own rows, to the bit."""
    if pad == 1:
        pad = {"x": 1, "weight": 1}  # but not the mask
    with company(
        tokens_and_sums,
        batch_size=batch_size,
        padding_side=side,
        pad_token=pad,
        pad_to_multiple_of=multiple,
        unpad_outputs=unpad,
        flavour=flavour,
    ) as there:
        answers = there.answers(*calls)
        for call, answer in zip(calls, answers, strict=True):
            assert same(answer, alone(call))
        rows: dict[Any, list[int]] = {}
        for batch in there.batches:
            if len(batch["x"]):
                rows.setdefault(kind(batch), []).append(len(batch["x"]))
        chosen = there.fn.stats.chosen
        for sizes in rows.values():  # of calls that are alike, every batch but the last is full
            assert "length" in chosen or sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert max(sizes) <= batch_size


def kind(batch: dict[str, Any]) -> Any:
    return tuple((key, str(value.dtype), value.ndim, tuple(value.shape[2:])) for key, value in batch.items())
