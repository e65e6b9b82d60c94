"""Embedding a data set with Ray Data, and serving queries with Ray Serve: one decorated class for both.

The model, MiniLM, comes in a package of the `ray` extra, so nothing is downloaded. Actors embed partitions of
the sentences; a replica then answers which of all sentences is most like that of a caller.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray asks where there is no GPU

import numpy as np
import ray
import torch
from embed_sentences import SAME, SentenceEmbedder, lowest_cosine, make_sentences
from ray import data, serve
from ray.serve.handle import DeploymentHandle
from transformers.utils.logging import disable_progress_bar

Row = dict[str, Any]

ACTORS = 2
CALLERS = 32
TIME_LIMIT_S = 240


class Partition:
    """An actor's part of the work: what Ray Data hands it, embedded by the batched method.

    The rows that Ray Data calls a batch are what one task reads; the model gets theirs in batches of like
    length, which is what `embed_alike` is for.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.embedder = SentenceEmbedder()

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add the vectors to the rows, with the process that made them and the size of its batches."""
        vectors = self.embedder.embed_alike(rows["sentence"].tolist())
        count = len(vectors)
        mean_size = self.embedder.embed_alike.stats.avg_batch_size
        actor = ray.get_runtime_context().get_actor_id()
        return {
            **rows,
            "vector": np.stack(vectors),
            "actor": np.repeat(actor, count),
            "batch_size": np.repeat(mean_size, count),
        }


class Match(NamedTuple):
    """The sentence that is most like a query."""

    sentence: str
    cosine: float


@serve.deployment(max_ongoing_requests=2 * CALLERS, ray_actor_options={"num_cpus": 0.1})
class Search:
    """Finds the most similar sentence, with the vectors that were made offline."""

    def __init__(self, sentences: list[str], vectors: np.ndarray) -> None:
        torch.set_num_threads(1)
        self.sentences = sentences
        self.vectors = vectors
        self.embedder = SentenceEmbedder()

    async def __call__(self, query: str) -> Match:
        """Answer one query; those that wait at the same time share the model's batches."""
        cosines = self.vectors @ await self.embedder.embed_alike.acall(query)
        best = int(cosines.argmax())
        return Match(self.sentences[best], float(cosines[best]))

    async def mean_batch_size(self) -> float:
        """Return how many queries shared a batch."""
        return self.embedder.embed_alike.stats.avg_batch_size


def start() -> None:
    """Start Ray on this machine, and Serve without HTTP."""
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="warning",
        object_store_memory=200 * 2**20,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it reports each second where there is no terminal
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})


def embed_offline(sentences: Sequence[str], partitions: int) -> list[Row]:
    """Embed the sentences in partitions, and return the rows in the order of the sentences."""
    rows = [{"number": number, "sentence": sentence} for number, sentence in enumerate(sentences)]
    embedded = data.from_items(rows, override_num_blocks=partitions).map_batches(
        Partition,
        batch_size=None,  # a partition in one call
        compute=data.ActorPoolStrategy(size=ACTORS),
        num_cpus=0.5,
    )
    return sorted(embedded.take_all(), key=lambda row: row["number"])


async def ask_online(search: DeploymentHandle, queries: Sequence[str]) -> list[Match]:
    """Ask all queries, a few callers' worth at a time."""
    places = asyncio.Semaphore(CALLERS)

    async def ask(query: str) -> Match:
        async with places:
            return await search.remote(query)

    return await asyncio.gather(*map(ask, queries))


def show_partitions(rows: Sequence[Row], seconds: float) -> None:
    """Print which process embedded how much."""
    print(f"{len(rows)} sentences embedded in {seconds:.1f} s, the start of the actors included.")
    for actor in sorted({row["actor"] for row in rows}):
        mine = [row for row in rows if row["actor"] == actor]
        print(f"  actor {actor[:6]}: {len(mine)} sentences, mean batch size {mine[-1]['batch_size']:.1f}")


def main() -> int:
    """Embed, search, print, verify, and return the exit status."""
    parser = argparse.ArgumentParser(description="Embed a data set with Ray Data, and search it.")
    parser.add_argument("--sentences", type=int, default=384, metavar="N", help="how many (default 384)")
    parser.add_argument("--partitions", type=int, default=6, metavar="N", help="of them (default 6)")
    arguments = parser.parse_args()
    for name, count in vars(arguments).items():
        if count < 1:
            parser.error(f"--{name} must be at least 1, got {count}")
    sentences = make_sentences(arguments.sentences)

    try:
        start()
        started = perf_counter()
        rows = embed_offline(sentences, arguments.partitions)
        show_partitions(rows, perf_counter() - started)
        vectors = np.stack([row["vector"] for row in rows])
        search = serve.run(Search.bind(sentences, vectors), name="search", route_prefix=None)
        matches = asyncio.run(ask_online(search, sentences))
        size = search.mean_batch_size.remote().result(timeout_s=TIME_LIMIT_S)
        print(f"{len(matches)} queries answered online, mean batch size {size:.1f}.")
    finally:
        serve.shutdown()
        ray.shutdown()

    disable_progress_bar()  # that of loading the weights
    cosine = lowest_cosine(list(vectors), [*SentenceEmbedder().model.encode(sentences)])
    cosine = min(cosine, *(match.cosine for match in matches))
    if not cosine > SAME or [match.sentence for match in matches] != sentences:
        print(f"A vector differs from that of its sentence alone: cosine {cosine:.6f}.")
        return 1
    print(
        f"All {len(rows)} vectors verified: cosine with the plain model's, and the online ones, above {SAME}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
