"""A web service whose requests share batches: FastAPI on uvicorn, with MiniLM, a sentence model, behind it.

    uvicorn --factory --app-dir examples --timeout-graceful-shutdown 30 embedding_service:minilm
    curl localhost:8000/embed -H 'content-type: application/json' -d '{"text": "one text, or a list of them"}'

The `service` extra carries the model in a package, so nothing is downloaded. `create_app` takes any function
of `batched.dynamically` from texts to vectors: exchange `embedding_service_model.py` for a model of yours.

With several web processes, and one for the model: requests of all web processes share its batches.

    cd examples
    python -m batched serve embedding_service_model:embed --bind unix:embed.sock
    EMBED_AT=unix:embed.sock uvicorn --workers 2 --factory --timeout-graceful-shutdown 30 \
        embedding_service:minilm

The handlers are the same. The queue and its figures are then in the process of the model.

With several processes that have a batcher each, and share only the memory of a model that is loaded before
they fork:

    gunicorn --preload --workers 2 --worker-class uvicorn_worker.UvicornWorker \
        --chdir examples 'embedding_service:minilm()'

Each has a queue and metrics of its own; a scrape of `/metrics` meets one of them, and `batched.prometheus`
says how to meet all.

On SIGTERM uvicorn takes no more connections, and ends when every request that it has is answered. Deadlines
bound that: the longest is below the 30 s after which it ends all the same, as gunicorn does, for the sake of
clients that never send the rest of a request or never read the answer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Discriminator, Field, StringConstraints, Tag

import batched
from batched.asgi import Batching
from batched.prometheus import Collector

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

MOST_CHARACTERS = 10_000
MOST_TEXTS = 256
MOST_BYTES = 4_000_000
LONGEST_DEADLINE_MS = 25_000

Text = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Vector = list[float]

_logger = logging.getLogger("uvicorn.error")


def one_or_many(text: object) -> str:
    """Return which kind of text is meant, so that errors speak of that kind only."""
    return "list" if isinstance(text, list) else "string"


class Question(BaseModel):
    """What a client sends: one text, or a list of them."""

    text: Annotated[
        Annotated[Text, Tag("string")] | Annotated[Texts, Tag("list")], Discriminator(one_or_many)
    ]


class Answer(BaseModel):
    """What it gets: one vector, or a list of them in the order of the texts."""

    embedding: Vector | list[Vector]


async def refuse(_: Request, error: RequestValidationError) -> Response:
    """Say in a sentence what is wrong with a request, and where."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    why = problem.get("ctx", {}).get("error")
    detail = f"{place}: {problem['msg']} ({why})." if why else f"{place}: {problem['msg']}."
    if place == "body":
        detail = 'Send JSON such as {"text": "hello"}, and "content-type: application/json".'
    return JSONResponse({"detail": detail}, 422)


def say(status: int, detail: str) -> Handler:
    """Return what answers an error with a sentence."""

    async def handler(_: Request, __: Exception) -> Response:
        return JSONResponse({"detail": detail}, status)

    return handler


ERRORS: dict[int | type[Exception], Handler] = {
    RequestValidationError: refuse,
    400: say(400, "The body must be JSON, in UTF-8."),
    413: say(413, f"The body must have at most {MOST_BYTES:,} bytes."),
}


def create_app(embed: batched.BatchedFunction[str, Vector], *, stuck_after_s: float = 30.0) -> FastAPI:
    """Return the service.

    Args:
        embed: From texts to vectors, of this process or, by `batched.connect`, of another one. Give it
            `max_queue_size`, at least `MOST_TEXTS`, or lists may fill the memory.
        stuck_after_s: A batch that has been running for longer is reported by `/healthz`.

    """
    app = FastAPI(title="Embeddings", exception_handlers=ERRORS, max_body_size=MOST_BYTES)
    app.add_middleware(Batching, deadline_ms=LONGEST_DEADLINE_MS)  # 429, 503, 504; clients that leave
    registry = CollectorRegistry()
    Collector(registry=registry)

    @app.post("/embed")
    async def answer_from_loop(question: Question) -> Answer:
        return answer(question, await embed.options(return_exceptions=True).acall(question.text))

    # A plain function runs in one of FastAPI's 40 threads, and shares the batches of the handler above. It is
    # not told that its client has left: what it asked for is dropped at the deadline, not before.
    @app.post("/embed_from_thread")
    def answer_from_thread(question: Question) -> Answer:
        return answer(question, embed.options(return_exceptions=True)(question.text))

    # These two do without FastAPI's threads, so that they answer when all of those wait for a stuck batch.
    # The figures may be those of another process, so the event loop does not wait for them.
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        stats = await asyncio.to_thread(getattr, embed, "stats")
        age = max(stats.running, default=0.0)
        if age > stuck_after_s:
            raise HTTPException(503, f"A batch has been running for {age:.1f} s.")
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def answer(question: Question, result: Any) -> Answer:
    """Return the answer, or raise which of the texts the model has failed on."""
    rows = {"text": result}
    if isinstance(question.text, list):
        rows = {f"text.{index}": row for index, row in enumerate(result)}
    errors = {place: row for place, row in rows.items() if isinstance(row, BaseException)}
    if not errors:
        return Answer(embedding=result)
    for error in errors.values():  # for us; a client is told no more than where
        _logger.error("The model failed on a text", exc_info=error)
    raise HTTPException(500, f"The model failed on {', '.join(errors)}.")


def minilm() -> FastAPI:
    """Return the service with all-MiniLM-L6-v2 of this process, or of the one that `EMBED_AT` names."""
    embed: batched.BatchedFunction[str, Vector]
    if address := os.environ.get("EMBED_AT"):
        embed = batched.connect(address, wait_s=5.0).embed
    else:
        from embedding_service_model import embed  # noqa: PLC0415  it loads the model

    app = create_app(embed)
    # What is there now stays: else the garbage collector looks through all of it now and then, and all
    # requests wait. Processes that fork from here also share its memory for longer.
    gc.collect()
    gc.freeze()
    return app
