"""Rows are padded to the longest: with which number, on which side, to which multiple."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kit.company import company, itself, padded, same
from tests.kit.flavours import Flavour
from tests.kit.gate import until
from tests.kit.optional import torch

SHORT, LONG = {"x": np.array([[1, 2]])}, {"x": np.array([[3, 4, 5]])}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, [[1, 2, 0], [3, 4, 5]]),
        ({"pad_token": -100}, [[1, 2, -100], [3, 4, 5]]),
        ({"pad_token": {"x": -100}}, [[1, 2, -100], [3, 4, 5]]),
        ({"pad_tokens": {"x": np.int8(-1)}}, [[1, 2, -1], [3, 4, 5]]),
        ({"pad_tokens": 7.0}, [[1, 2, 7], [3, 4, 5]]),
        ({"pad_token": {"x": torch.tensor(7)}}, [[1, 2, 7], [3, 4, 5]]),
        ({"pad_token": {"y": 9}}, [[1, 2, 0], [3, 4, 5]]),
        ({"padding_side": "left"}, [[0, 1, 2], [3, 4, 5]]),
        ({"padding_side": "left", "pad_token": {"x": 9}}, [[9, 1, 2], [3, 4, 5]]),
        ({"pad_to_multiple_of": 4}, [[1, 2, 0, 0], [3, 4, 5, 0]]),
        ({"pad_to_multiple_of": 3}, [[1, 2, 0], [3, 4, 5]]),
        ({"pad_to_multiple_of": 4, "padding_side": "left"}, [[0, 0, 1, 2], [0, 3, 4, 5]]),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_are_padded_to_the_longest(options: Any, rows: Any, library: str) -> None:
    """By the feature's own number, or one for all, on either side, rounded up if asked."""
    calls = [SHORT, LONG] if library == "numpy" else [{"x": torch.from_numpy(c["x"])} for c in (SHORT, LONG)]
    assert padded(*calls, **options)["x"].tolist() == rows
    ragged = {"x": [call["x"][0] for call in calls]}
    assert padded(ragged, **options)["x"].tolist() == rows
    assert padded(*calls[:1], ragged, **options)["x"].tolist() == [rows[0], *rows]


@pytest.mark.parametrize("value", [-1.5, float("inf"), float("-inf"), float("nan"), 1, True])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.complex64, torch.bfloat16, torch.float32, torch.complex64]
)
def test_floats_are_padded_with_any_number(value: float, dtype: Any) -> None:
    """Infinite ones too, and what is no number."""
    make = torch.zeros if isinstance(dtype, torch.dtype) else np.zeros
    x = padded({"x": [make(1, dtype=dtype), make(2, dtype=dtype)]}, pad_token=value)["x"]
    assert str(complex(x[0, 1]).real) == str(float(value))
    assert x.dtype == dtype


def test_a_plain_number_pads_every_feature_and_a_missing_one_zero() -> None:
    """A feature that `pad_token` does not name is padded with zero, one that a call lacks is no matter."""
    rows = [np.ones(1, "i8"), np.ones(2, "i8")]
    both = padded({"x": rows, "y": rows}, pad_token=5)
    assert (both["x"].tolist(), both["y"].tolist()) == ([[1, 5], [1, 1]], [[1, 5], [1, 1]])
    one = padded({"x": rows, "y": rows}, pad_token={"y": 6, "z": 7})
    assert (one["x"].tolist(), one["y"].tolist()) == ([[1, 0], [1, 1]], [[1, 6], [1, 1]])


def test_strings_are_padded_with_strings() -> None:
    """Empty ones by default."""
    rows = {"x": [np.array(["ab"]), np.array(["cd", "ef"])]}
    assert padded(rows)["x"].tolist() == [["ab", ""], ["cd", "ef"]]
    assert padded(rows, pad_token="-")["x"].tolist() == [["ab", "-"], ["cd", "ef"]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", 300),
        ("u1", -1),
        ("i1", 128),
        ("i8", 0.5),
        ("i8", float("nan")),
        ("i8", 10**400),
        ("f8", 10**400),
        ("f2", 70_000),
        ("f4", 1j),
        ("f4", np.complex64(1j)),
        ("?", 2),
        ("U2", 3),
        ("U2", b"a"),
        ("U2", "a\0"),
        ("S2", "a"),
        ("i8", "a"),
        ("M8[s]", "a"),
        (torch.uint8, 300),
        (torch.int64, 0.5),
        (torch.bool, -100),
        (torch.float16, 70_000),
        (torch.float32, 1j),
        (torch.float32, "a"),
    ],
)
def test_a_number_that_a_dtype_cannot_hold_is_refused_at_the_door(dtype: Any, value: Any) -> None:
    """With the feature, the number and the dtype in the message; no other call is hurt."""
    bad = torch.zeros(1, 2).to(dtype) if isinstance(dtype, torch.dtype) else np.zeros((1, 2), dtype)
    with company(lambda features: np.zeros(len(*features.values())), pad_token={"x": value}) as there:
        with pytest.raises(ValueError, match=r"f: pad_token for 'x': .* does not fit in ") as caught:
            there.fn.submit(x=bad)
        assert repr(value)[:20] in str(caught.value)
        assert str(bad.dtype) in str(caught.value)
        assert there.errors({"x": bad[:, 0]}, {"y": bad}) == [None, None]


def test_nothing_is_padded_where_nothing_is_ragged() -> None:
    """A feature whose rows are equal stays as it is beside one that is padded."""
    assert padded(SHORT, SHORT)["x"].shape == (2, 2)
    batch = padded(
        {"x": np.ones((1, 2)), "y": np.ones((1, 5))},
        {"x": np.ones((1, 3)), "y": np.ones((1, 5))},
        pad_to_multiple_of={"x": 8},
    )
    assert (batch["x"].shape, batch["y"].shape) == ((2, 8), (2, 5))


@pytest.mark.parametrize("multiple", [4, {"x": 4}, {"x": np.int8(4), "y": 1}])
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_every_length_is_a_multiple(make: Any, multiple: Any) -> None:
    """However many rows there are, none too, and whether they differ: the function sees few shapes."""
    calls: list[list[Any]] = [
        [make((1, 2))],
        [make((3, 2))],
        [make((1, 2)), make((1, 2))],
        [make((2, 5)), make((1, 2))],
        [make((2, 4)), make((1, 4))],
        [[make(3), make(3)]],
        [[make(3), make(2)], make((1, 4))],
        [make((0, 3))],
        [make((2, 3, 2)), make((1, 2, 2))],
        [[make((2, 3)), make((2, 5))]],
        [make((2, 0))],
    ]
    lengths = [4, 4, 4, 8, 4, 4, 4, 4, 4, 4, 0]
    for blocks, length in zip(calls, lengths, strict=True):
        rows = sum(map(len, blocks))
        batch = padded(
            *({"x": block, "y": make(len(block))} for block in blocks), pad_to_multiple_of=multiple
        )
        assert tuple(batch["x"].shape[:2]) == (rows, length)
        assert float(batch["x"].sum()) == sum(float(row.sum()) for block in blocks for row in block)
        assert tuple(batch["y"].shape) == (rows,)
    with company(itself, unpad_outputs=True, pad_to_multiple_of=multiple) as there:
        answers = there.answers(*({"x": make((rows, 3))} for rows in (1, 2, 0)))
        assert [tuple(answer.shape) for answer in answers] == [(1, 3), (2, 3), (0, 3)]
        padding = there.fn.stats.padding
        assert padding.padded - padding.real == 3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_are_padded_along_every_axis_that_is_ragged(make: Any, side: Any) -> None:
    """And each is cut out again, so that pictures of any size come back as they went in."""
    pictures = [make((2, 3, 3)), make((3, 1, 3)), make((2, 2, 3)), make((5, 6, 3))]
    options = {"padding_side": side, "pad_token": -1}
    batch = padded({"x": pictures[:2]}, {"x": pictures[2:]}, **options)["x"]
    assert batch.shape == (4, 5, 6, 3)
    corner = batch[0, :2, :3] if side == "right" else batch[0, -2:, -3:]
    assert same(corner, pictures[0]) or corner.tolist() == pictures[0].tolist()
    assert float(batch.sum()) == sum(float(p.sum()) for p in pictures) - (
        4 * 90 - sum(p.sum() for p in pictures)
    )
    for batch_size in (1, 3, 4):
        with company(itself, unpad_outputs=True, batch_size=batch_size, **options) as there:
            first, second = there.answers({"x": pictures[:2]}, {"x": pictures[2:]})
            assert same(first, pictures[:2])
            assert same(second, pictures[2:])
    with company(lambda f: f["x"].sum(2), unpad_outputs=True, pad_token=0, padding_side=side) as there:
        sums = there.answers({"x": pictures[:2]}, {"x": pictures[2:]})[0]
        assert same(sums, [picture.sum(1) for picture in pictures[:2]])


def test_stats_say_what_padding_costs(flavour: Flavour) -> None:
    """Real and padded elements of all features, and the waste in percent."""
    with company(lambda features: features["x"][:, 0], flavour=flavour) as there:
        nothing = there.fn.stats.padding
        assert (nothing.real, nothing.padded, nothing.waste_percent) == (0, 0, 0.0)
        there.answers(
            {"x": np.ones((1, 2)), "y": np.ones((1, 4))}, {"x": np.ones((2, 4)), "y": np.ones((2, 4))}
        )
        until(lambda: there.fn.stats.total_batches == 2)
        padding = there.fn.stats.padding
        assert (padding.real, padding.padded) == (1 + 2 + 8 + 12, 1 + 12 + 12)
        assert padding.waste_percent == pytest.approx(8.0)
        assert "8.0% of 25 elements" in str(there.fn.stats)
        for rows, real, padded_ in [
            ([np.ones((1, 2)), np.ones((3, 1))], 5, 12),  # ragged along two axes
            ([np.ones((1, 5)), np.ones((3, 5))], 20, 30),  # along one of two
        ]:
            before = there.fn.stats
            flavour.call(there.fn, x=rows)
            until(lambda: there.fn.stats.total_batches > before.total_batches)
            padding = there.fn.stats.padding
            assert (padding.real - before.padding.real, padding.padded - before.padding.padded) == (
                real,
                padded_,
            )
