"""The options of arrays are checked at decoration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batched import inference
from tests.kit.company import itself


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"pad_token": None},
            TypeError,
            "pad_token must be a number, or a dict with a number per feature, got None",
        ),
        ({"pad_token": [1]}, TypeError, "pad_token must be a number"),
        ({"pad_token": {"x": None}}, TypeError, "pad_token must be a number"),
        ({"pad_token": {"x": np.ones(2)}}, TypeError, "pad_token must be a number"),
        (
            {"pad_token": 1, "pad_tokens": 1},
            TypeError,
            "pad_token was given twice: pad_tokens is another name for it",
        ),
        ({"padding_side": "middle"}, ValueError, "padding_side must be 'right' or 'left', got 'middle'"),
        ({"pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of must be at least 1, got 0"),
        ({"pad_to_multiple_of": 1.5}, TypeError, "pad_to_multiple_of must be an int, got 1.5"),
        (
            {"pad_to_multiple_of": {"x": 0}},
            ValueError,
            r"pad_to_multiple_of\['x'\] must be at least 1, got 0",
        ),
        *(
            ({"unpad_outputs": value}, TypeError, "True, False, or a dict .* as {'logits': 'input_ids'}")
            for value in (1.5, None, 0, "logits", ["logits"], (0,), {"logits"})
        ),
        ({"spread_kwargs": 1}, TypeError, "spread_kwargs must be True or False, got 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"padding": 0}, TypeError, "no option 'padding'.*; it has batch_size, .*, spread_kwargs"),
    ],
)
def test_a_senseless_option_is_refused_at_decoration(options: Any, error: Any, message: str) -> None:
    """In every form of the decorator, before any function is called."""
    with pytest.raises(error, match=message):
        inference.dynamically(**options)
    with pytest.raises(error, match=message):
        inference.dynamically(itself, **options)


def test_options_are_copied() -> None:
    """What becomes of the dict afterwards changes nothing."""
    pad: dict[str, Any] = {"x": 7}
    unpad: dict[str, Any] = {}
    fn = inference.dynamically(itself, timeout_ms=0, pad_token=pad, unpad_outputs=unpad)
    pad["x"], unpad["nobody"] = None, "x"
    assert fn(x=[np.ones(1), np.ones(2)]).tolist() == [[1, 7], [1, 1]]
