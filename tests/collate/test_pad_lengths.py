"""`pad_to_lengths`: rows have one of a few lengths, or their call is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched import inference
from tests.kit.company import padded


def test_each_batch_has_the_first_length_that_is_long_enough() -> None:
    assert padded({"x": np.ones((2, 3))}, pad_to_lengths=(4, 8))["x"].shape == (2, 4)
    assert padded({"x": np.ones((2, 4))}, pad_to_lengths=(4, 8))["x"].shape == (2, 4)
    assert padded({"x": np.ones((1, 3))}, {"x": np.ones((1, 5))}, pad_to_lengths=(4, 8))["x"].shape == (2, 8)


def test_features_have_their_own_lengths_or_none() -> None:
    features = {"x": np.ones((1, 3)), "y": np.ones((1, 3)), "z": np.ones(1)}
    found = padded(features, pad_to_lengths={"x": [4]})
    assert [found[key].shape for key in "xyz"] == [(1, 4), (1, 3), (1,)]


@pytest.mark.parametrize("rows", [np.ones((1, 5)), [np.ones(5)], [np.ones(2), np.ones(5)]])
def test_a_row_that_is_too_long_names_both_lengths(rows: Any) -> None:
    fn = inference.dynamically(lambda features: features["x"], pad_to_lengths={"x": (2, 4)})
    with pytest.raises(ValueError, match=r"<lambda>: 'x' has a row of length 5, .* pad_to_lengths is 4"):
        fn(x=rows)


@pytest.mark.parametrize(
    ("lengths", "multiples", "feature"),
    [
        ((4,), 8, "one feature"),
        ({"x": (4,)}, 8, "'x'"),
        ((4,), {"x": 8}, "'x'"),
        ({"x": (4,)}, {"x": 8}, "'x'"),
    ],
)
def test_a_feature_has_lengths_or_a_multiple(lengths: Any, multiples: Any, feature: str) -> None:
    with pytest.raises(TypeError, match=f"pad_to_lengths and pad_to_multiple_of .* {feature}"):
        inference.dynamically(pad_to_lengths=lengths, pad_to_multiple_of=multiples)


def test_one_feature_may_have_lengths_and_another_a_multiple() -> None:
    features = {"x": np.ones((1, 3)), "y": np.ones((1, 3))}
    found = padded(features, pad_to_lengths={"x": (5,)}, pad_to_multiple_of={"y": 4})
    assert [found[key].shape for key in "xy"] == [(1, 5), (1, 4)]


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        (4, TypeError, "pad_to_lengths must be a tuple of ints"),
        ({"x": 4}, TypeError, r"pad_to_lengths\['x'\] must be a tuple of ints"),
        ((8, 4), ValueError, "pad_to_lengths must be in ascending order"),
        ({"x": ()}, ValueError, r"pad_to_lengths\['x'\] must not be empty"),
    ],
)
def test_what_is_no_series_of_lengths_is_refused(lengths: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        inference.dynamically(pad_to_lengths=lengths)


def shapes_of(calls: list[Any], **options: Any) -> list[Any]:
    """Return the shapes of the first feature in each batch, as the calls run one after the other."""
    seen = []

    def note(features: Any) -> Any:
        seen.append(features["x"].shape)
        return features["x"]

    fn = inference.dynamically(note, **options)
    for call in calls:
        fn(call)
    return seen


@pytest.mark.parametrize("steps", [{"pad_to_lengths": (8,)}, {"pad_to_multiple_of": 8}])
def test_the_budget_counts_the_lengths_that_rows_are_padded_to(steps: dict[str, Any]) -> None:
    ones = {"x": np.ones((5, 1))}
    assert shapes_of([ones], max_batch_length=16, **steps) == [(2, 8), (2, 8), (1, 8)]
    ragged = {"x": [np.ones(length) for length in (1, 3, 8)]}
    assert shapes_of([ragged], max_batch_length=16, **steps) == [(2, 8), (1, 8)]


@pytest.mark.parametrize(
    "steps",
    [
        {"pad_to_multiple_of": {"x": 8}},
        {"pad_to_multiple_of": {"x": 8}, "pad_to_lengths": {"y": (1, 2, 3)}},
    ],
)
@pytest.mark.parametrize("first", [1, 8])
def test_a_feature_that_is_rounded_up_counts_beside_one_that_is_not(steps: Any, first: int) -> None:
    """Though it is as long in each batch, and the other one is not."""
    lengths = ((first, 1), (1, 2), (1, 3))
    calls = [{"x": np.ones((4, length)), "y": np.ones((4, other))} for length, other in lengths]
    assert shapes_of(calls, max_batch_length=16, **steps)[2:] == [(2, 8)] * 4
