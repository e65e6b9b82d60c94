"""What type checkers make of `batched.inference.dynamically`.

Never run, but read by both type checkers, as `lists.py` says.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import TypeAlias, assert_type

import numpy as np
import numpy.typing as npt

from batched import Stats, inference
from batched.inference import BatchedInference
from batched.typing import Answers, AsyncAnswers
from tests.kit.annotated import annotated

Floats: TypeAlias = npt.NDArray[np.float32]


@inference.dynamically
def infer(features: dict[str, Floats]) -> Floats:
    return features["x"]


@inference.dynamically(
    64,
    5.0,
    name="infer",
    pad_token={"x": 0},
    padding_side="left",
    pad_to_multiple_of=8,
    unpad_outputs={"logits": "x"},
)
def infer_with_options(features: dict[str, Floats]) -> dict[str, Floats]:
    return features


@inference.dynamically(spread_kwargs=True, pad_tokens=-1, unpad_outputs=True)
def infer_spread(x: Floats, mask: Floats) -> tuple[Floats, Floats]:
    return x, mask


@inference.dynamically
async def infer_later(features: dict[str, Floats]) -> Floats:
    return features["x"]


@inference.dynamically(batch_size=64)
async def infer_later_with_options(features: dict[str, Floats]) -> list[Floats]:
    return [features["x"]]


class Encoder:
    @inference.dynamically
    def encode(self, features: dict[str, Floats]) -> Floats:
        return features["x"]

    @inference.dynamically(batch_size=64, spread_kwargs=True)
    def encode_spread(self, x: Floats, mask: Floats) -> dict[str, Floats]:
        return {"x": x, "mask": mask}

    @inference.dynamically(timeout_ms=0)
    async def encode_later(self, features: dict[str, Floats]) -> Floats:
        return features["x"]


def arrays(x: Floats, features: dict[str, Floats], mapping: Mapping[str, Floats], encoder: Encoder) -> None:
    assert_type(annotated(infer), BatchedInference[Floats])
    assert_type(infer(features), Floats)
    assert_type(infer(mapping), Floats)
    assert_type(infer({"x": [x, x]}), Floats)
    assert_type(infer(x=x, mask=x), Floats)
    assert_type(infer.submit(features), Future[Floats])
    assert_type(infer.submit(x=x), Future[Floats])
    assert_type(infer.map([features]), Answers[Floats])
    assert_type(infer.map([features], with_items=True), Answers[tuple[dict[str, Floats], Floats]])
    assert_type(annotated(infer.options(deadline_ms=200, priority="bulk")), BatchedInference[Floats])
    assert_type(infer.options(return_exceptions=True)(features), Floats | Exception)
    assert_type(infer.stats, Stats)
    assert_type(infer.stats.padding.real, int)
    assert_type(infer.stats.padding.waste_percent, float)
    with infer as entered:
        assert_type(annotated(entered), BatchedInference[Floats])

    assert_type(infer_with_options(features), dict[str, Floats])
    assert_type(infer_spread(x=x, mask=x), tuple[Floats, Floats])
    assert_type(infer_spread(features), tuple[Floats, Floats])
    assert_type(annotated(infer_later), BatchedInference[Floats])
    assert_type(infer_later(features), Floats)
    assert_type(infer_later_with_options(x=x), list[Floats])
    again = inference.dynamically(batch_size=2)(encoder.encode)
    assert_type(annotated(again), BatchedInference[Floats])

    assert_type(annotated(encoder.encode), BatchedInference[Floats])
    assert_type(encoder.encode(features), Floats)
    assert_type(encoder.encode(x=x), Floats)
    assert_type(encoder.encode.submit(x=x), Future[Floats])
    assert_type(encoder.encode_spread(x=x, mask=x), dict[str, Floats])
    assert_type(encoder.encode_later(features), Floats)
    assert_type(encoder.encode.options(priority="bulk")(features), Floats)


async def async_arrays(features: dict[str, Floats], source: AsyncIterator[dict[str, Floats]]) -> None:
    assert_type(await infer.acall(features), Floats)
    assert_type(await infer.acall(**features), Floats)
    assert_type(await infer_later.acall(features), Floats)
    assert_type(await Encoder().encode_later.acall(features), Floats)
    assert_type(infer.amap(source), AsyncAnswers[Floats])
    assert_type(infer.amap([features]), AsyncAnswers[Floats])
    assert_type(infer.amap([features], with_items=True), AsyncAnswers[tuple[dict[str, Floats], Floats]])


def wrong_arrays(x: Floats) -> None:
    infer(x)  # type: ignore[arg-type]
    infer({"x": x}, {"x": x})  # type: ignore[call-arg]
    infer.map([x])  # type: ignore[list-item]
    inference.dynamically(padding_side="middle")  # type: ignore[call-overload]
    inference.dynamically(pad_to_multiple_of="8")  # type: ignore[call-overload]
    inference.dynamically(spread_kwargs=None)  # type: ignore[call-overload]
    inference.dynamically(padding=0)  # type: ignore[call-overload]
