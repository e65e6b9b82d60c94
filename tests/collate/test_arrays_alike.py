"""Strings of any width share a batch; what means something else does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kit.company import company, itself
from tests.kit.flavours import Flavour

WIDTHS = [("U3", "U7"), ("U7", "U3"), ("S2", "S9"), (">U3", "<U7"), (">U3", "<U3"), ("U1", "U1")]
APART = [
    ("f4", "f8"),
    (">f4", "<f4"),
    ("i4", "u4"),
    ("U3", "S3"),
    ("M8[s]", "M8[ms]"),
    ("O", "U3"),
    ("V3", "V5"),
    ("?", "u1"),
]


def filled(dtype: str, rows: int, length: int) -> Any:
    """Return rows of ones."""
    return np.ones((rows, length), "i1").astype(dtype) if dtype[0] != "V" else np.zeros((rows, length), dtype)


@pytest.mark.parametrize("dtypes", WIDTHS, ids="/".join)
@pytest.mark.parametrize("lengths", [(2, 2), (2, 4), (4, 2)])
def test_they_share_a_batch(flavour: Flavour, dtypes: tuple[str, str], lengths: tuple[int, int]) -> None:
    """Of the wider type, also where rows are padded, lists, or more than one; each gets its own values."""
    one, other = (filled(dtype, 2, length) for dtype, length in zip(dtypes, lengths, strict=True))
    with company(itself, flavour=flavour, unpad_outputs=True, batch_size=16) as there:
        calls = [one, other, list(other), [other[0], other[0][:1]], one[:1]]
        answers = there.answers(*({"x": x} for x in calls))
        assert len(there.batches) == 1
        assert there.batches[0]["x"].dtype == np.result_type(one, other)
    for answer, call in zip(answers, calls, strict=True):
        assert all(map(np.array_equal, answer, call))


@pytest.mark.parametrize("dtypes", APART, ids="/".join)
def test_what_means_something_else_does_not(dtypes: tuple[str, str]) -> None:
    """A function may look at the numbers of a date, whose unit it knows."""
    with company(itself, batch_size=8) as there:
        answers = there.answers(*({"x": filled(dtype, 1, 2)} for dtype in dtypes))
        assert [batch["x"].dtype for batch in there.batches] == list(map(np.dtype, dtypes))
        assert [answer.dtype for answer in answers] == list(map(np.dtype, dtypes))


@pytest.mark.parametrize("dtype", [pair[0] for pair in WIDTHS])
def test_alone_a_call_keeps_its_own(dtype: str) -> None:
    """Also after others have come."""
    other = f"{np.dtype(dtype).kind}9"
    with company(itself, batch_size=8) as there:
        there.answers({"x": filled(other, 1, 2)})
        assert there.answers({"x": filled(dtype, 1, 2)})[0].dtype == dtype
        assert there.answers({"x": list(filled(dtype, 1, 2))})[0].dtype == dtype


def test_a_call_in_several_batches_loses_no_letter(flavour: Flavour) -> None:
    """Its outputs may be wider in one batch than in another."""
    texts = np.array([["a"], ["b"], ["c"]])
    longer = np.array([["abcdefg"]])
    for calls in ([longer, texts], [texts, longer]):
        with company(itself, flavour=flavour, batch_size=2) as there:
            answers = there.answers(*({"x": x} for x in calls))
            for answer, call in zip(answers, calls, strict=True):
                assert answer.tolist() == call.tolist()

    def longest(features: dict[str, Any]) -> Any:
        return np.array([["x" * len(features["x"])]] * len(features["x"]))

    with company(longest, flavour=flavour, batch_size=2) as there:
        assert [len(row[0]) for row in there.answers({"x": texts})[0].tolist()] == [2, 2, 1]


def test_no_axis_but_that_of_rows() -> None:
    """Labels, of which each call has its own width."""
    with company(itself, batch_size=8) as there:
        calls = [np.array(["yes"]), np.array(["perhaps", "no"]), np.array([b"yes"])]
        answers = there.answers(*({"x": x} for x in calls))
        assert [answer.tolist() for answer in answers] == [["yes"], ["perhaps", "no"], [b"yes"]]
        assert [batch["x"].tolist() for batch in there.batches] == [["yes", "perhaps", "no"], [b"yes"]]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("dtype", "token"), [("<U1", "[PAD]"), (">U1", "[PAD]"), ("S1", b"[PAD]"), ("<U7", "[PAD]")]
)
def test_a_pad_token_may_be_wider_than_the_strings(dtype: str, token: Any, left: bool) -> None:
    """They get its width where rows are padded, as they get that of wider strings. No letter is lost."""
    side = "left" if left else "right"
    short, long = filled(dtype, 1, 2), filled(dtype, 1, 4)
    one = short[0, 0]
    expected = [token, token, one, one] if left else [one, one, token, token]
    options: Any = {"pad_token": {"x": token}, "padding_side": side, "unpad_outputs": False}
    for rows in (short, list(short)):
        with company(itself, batch_size=8, **options) as there:
            answers = there.answers({"x": rows}, {"x": long})
            assert answers[0].tolist() == [expected]
            (batch,) = there.batches
            assert batch["x"].dtype == np.promote_types(dtype, np.asarray(token).dtype).newbyteorder(dtype[0])
            assert there.answers({"x": short})[0].dtype == dtype


@pytest.mark.skipif(not hasattr(getattr(np, "dtypes", None), "StringDType"), reason="numpy 1 has none")
def test_strings_of_no_width() -> None:
    """They have one type, and share batches."""
    dtype = np.dtypes.StringDType()
    with company(itself, batch_size=8, unpad_outputs=True) as there:
        calls = [np.array([["a", "bcd"]], dtype), np.array([["a much longer one"]], dtype)]
        answers = there.answers(*({"x": x} for x in calls))
        assert [answer.tolist() for answer in answers] == [call.tolist() for call in calls]
        assert len(there.batches) == 1
