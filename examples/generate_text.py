"""Text generation for many callers: a batch of prompts, and to each caller its own tokens as they come.

The model is a tiny one, made on the spot and trained for a second on a few sentences, so nothing is
downloaded. Threads and tasks share its batches; one of them leaves early, and the others do not notice. All
is done twice: once a batch runs until its longest text has ended, and once others join in the places of those
that have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import batched
from batched.typing import StreamingFunction

CORPUS = """
    the quick brown fox jumps over the lazy dog. a lazy dog sleeps all day. the fox runs over the hill.
    a model is fast on batches. callers come one by one. the batch fills while the model runs.
"""
CONTEXT = 8  # characters that the model looks back
END = "."

Pieces = list[str | batched.Done]
Write = StreamingFunction[str, str, Any]


class Model(nn.Module):
    """Predicts the next character from the last few."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 16)
        self.hidden = nn.Linear(16 * CONTEXT, 64)
        self.out = nn.Linear(64, characters)

    def forward(self, contexts: Tensor) -> Tensor:
        """Return the logits of the character after each row of `contexts`."""
        logits: Tensor = self.out(torch.tanh(self.hidden(self.embed(contexts).flatten(1))))
        return logits


class Writer:
    """A model whose callers share batches, and get their text piece by piece."""

    def __init__(self, most_characters: int) -> None:
        torch.manual_seed(0)
        text = " ".join(CORPUS.split())
        self.most_characters = most_characters
        self.characters = sorted({*text, " "})
        self.number = {character: number for number, character in enumerate(self.characters)}
        self.model = Model(len(self.characters))
        self.train(text)

    def train(self, text: str) -> None:
        """Learn `text`, more or less by heart."""
        contexts = self.contexts([text[:end] for end in range(1, len(text))])
        following = torch.tensor([self.number[character] for character in text[1:]])
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        for _ in range(150):
            loss = nn.functional.cross_entropy(self.model(contexts), following)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def contexts(self, texts: Sequence[str]) -> Tensor:
        """Return the ends of `texts` as the model reads them, a row for each."""
        known = ["".join(filter(self.number.__contains__, text.lower())) for text in texts]
        windows = [text[-CONTEXT:].rjust(CONTEXT) for text in known]
        numbers = [[self.number[character] for character in window] for window in windows]
        return torch.tensor(numbers, dtype=torch.long).reshape(len(texts), CONTEXT)

    def begin(self, prompts: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Return the context of each prompt, and how many characters its text still gets."""
        return self.contexts(prompts), [self.most_characters] * len(prompts)

    def step(self, contexts: Tensor, more: list[int]) -> tuple[Tensor, list[int], Pieces]:
        """Return the same after one step, with the next character of each text that has not ended."""
        with torch.inference_mode():
            numbers = self.model(contexts).argmax(1)
        written = [self.characters[number] for number in numbers.tolist()]
        pieces = [character if most else batched.DONE for character, most in zip(written, more, strict=True)]
        more = [most - 1 if most and piece != END else 0 for piece, most in zip(pieces, more, strict=True)]
        return torch.cat([contexts[:, 1:], numbers[:, None]], dim=1), more, pieces

    @batched.dynamically(batch_size=4, timeout_ms=20)
    def write(self, prompts: list[str]) -> Iterator[Pieces]:
        """Yield the next character of each text, until all have come to their end."""
        contexts, more = self.begin(prompts)
        while any(more):
            contexts, more, pieces = self.step(contexts, more)
            yield pieces

    @batched.dynamically(batch_size=4, timeout_ms=20, continuous=True)
    def write_refilled(self, prompts: list[str]) -> Generator[Pieces, batched.Change[str], None]:
        """Do the same, and have prompts join in the places of texts that have ended."""
        contexts, more = self.begin(prompts)
        while True:
            contexts, more, pieces = self.step(contexts, more)
            change = yield pieces
            if change:
                keep = [at for at in range(len(more)) if at not in change.left]
                joined, more_of_joined = self.begin(change.joined)
                contexts = torch.cat([contexts[keep], joined])
                more = [more[at] for at in keep] + more_of_joined


def read(write: Write, prompt: str, texts: dict[str, str]) -> None:
    """Read a text in a thread."""
    texts[prompt] = prompt + "".join(write.stream(prompt))


async def read_async(write: Write, prompt: str, texts: dict[str, str]) -> None:
    """Read a text in a task."""
    texts[prompt] = prompt + "".join([piece async for piece in write.astream(prompt)])


async def leave_early(write: Write, prompt: str, texts: dict[str, str]) -> None:
    """Read a few characters, and leave: the rest is not kept."""
    pieces = []
    async for piece in write.astream(prompt):
        pieces.append(piece)
        if len(pieces) == 3:  # noqa: PLR2004
            break
    texts[prompt] = prompt + "".join(pieces)


def serve(write: Write, threads: list[str], tasks: list[str], leaver: str) -> dict[str, str]:
    """Return the text of each prompt, all read at the same time."""
    texts: dict[str, str] = {}

    async def read_all() -> None:
        readers = [read_async(write, prompt, texts) for prompt in tasks]
        await asyncio.gather(*readers, leave_early(write, leaver, texts))

    readers = [threading.Thread(target=read, args=(write, prompt, texts)) for prompt in threads]
    for reader in readers:
        reader.start()
    asyncio.run(read_all())
    for reader in readers:
        reader.join()
    return texts


def main() -> int:
    """Write, print, verify, and return the exit status."""
    parser = argparse.ArgumentParser(description="Stream generated text to many callers.")
    parser.add_argument("--characters", type=int, default=60, metavar="N", help="at most (default 60)")
    count = parser.parse_args().characters
    if count < 1:
        parser.error(f"--characters must be at least 1, got {count}")

    torch.set_num_threads(1)  # one core for the model, and the other ones for the callers
    writer, alone = Writer(count), Writer(count)
    prompts = ["the quick", "a lazy", "the fox", "a model", "callers", "the batch", "a dog"]
    random.Random(0).shuffle(prompts)  # noqa: S311  not a secret
    *others, leaver = prompts
    for write in (writer.write, writer.write_refilled):
        texts = serve(write, others[:3], others[3:], leaver)
        with write:  # its end waits for the batches that still run
            pass
        print(f"{write.stats.total_processed} prompts, {write.stats.total_joined} joined a batch that ran:")
        for prompt, text in texts.items():
            print(f"{prompt:>10} | {text[len(prompt) :]}{'  (left early)' if prompt == leaver else ''}")
            expected = prompt + "".join(alone.write.stream(prompt))
            if text != expected and not (prompt == leaver and expected.startswith(text)):
                print(f"{prompt!r} differs from what is written for it alone: {expected!r}.")
                return 1
        print(f"All {len(texts)} texts verified: the same as each prompt gets alone.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
