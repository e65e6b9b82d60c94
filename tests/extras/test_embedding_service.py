"""The web service of the examples: over HTTP, in processes of its own, and in trouble."""

from __future__ import annotations

import json
import random
import re

import pytest

from tests.kit.service import FROM_THREAD, JSON, PATIENCE_S, ROUTES, Service, letters, until, vector

pytestmark = [pytest.mark.model, pytest.mark.timeout(200)]


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
    for deadline_ms in ("soon", "0", "-1", "nan", "inf"):
        refused = letters(service.ask("hello", route, headers={"x-deadline-ms": deadline_ms}))
        assert refused == (400, "The deadline in the header must be a number of milliseconds above 0.")
    too_much = service.http.post(route, content=b" " * 4_000_001, headers=JSON)
    assert (too_much.status_code, too_much.text) == (413, "Content Too Large")
    too_much = service.http.post(route, content=iter([b" " * 4_000_001]), headers=JSON)
    assert letters(too_much) == (413, "The body must have at most 4,000,000 bytes.")
    assert service.batches() == []
    assert letters(service.ask("hello", route)) == "hello"


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


def test_a_full_queue_says_to_come_back_later(one_process: Service) -> None:
    service = one_process
    service.http.post("/configure", json={"max_queue_size": 4}).raise_for_status()
    with service.busy():
        waiting = [service.asking(f"text {index}") for index in range(4)]
        service.waits(4)
        for route in ROUTES:
            answer = service.ask("one too many", route)
            status, said = letters(answer)
            assert (status, said[:30]) == (429, "Too many requests are waiting.")
    assert [letters(answer) for answer in waiting] == [f"text {index}" for index in range(4)]
    assert letters(service.ask("later")) == "later"


@pytest.mark.parametrize("route", ROUTES)
def test_what_would_be_late_even_alone_is_refused_at_once_and_not_told_to_come_back(
    service: Service, route: str
) -> None:
    answers = []
    for number in range(6):
        with service.shut():
            answers.append(service.asking("first"))
            until(lambda number=number: len(service.batches()) > number)
            for _ in range(100):  # so long that what was learned is above the deadline
                service.stat("queue_size")
            if number == 5:  # by now it is known how long batches take
                late = service.ask("late", route, headers={"x-deadline-ms": "40"})
        assert letters(answers.pop()) == "first"
    assert letters(late) == (503, "The answer would come too late.")
    assert "retry-after" not in late.headers
    assert service.batches() == [["first"]] * 6
    assert service.stat("total_refused") == 1
    if service.model is not None:
        return  # a page of web processes has no figures of a function in another one
    page = service.http.get("/metrics").text.splitlines()
    assert 'batched_refused_items_total{name="embed"} 1.0' in page
    waits = [
        line.split()[1] for line in page if line.startswith('batched_expected_wait_seconds{name="embed"}')
    ]
    assert [float(wait) > 0.001 for wait in waits] == [True]


@pytest.mark.parametrize("route", ROUTES)
def test_a_deadline_ends_a_request_and_what_has_not_started_never_runs(service: Service, route: str) -> None:
    soon = {"x-deadline-ms": "20"}
    late = (504, "There was no answer in time.")
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
        # The web process and that of the model both know the deadline: which one is first is chance.
        until(lambda: service.stat("total_expired") + service.stat("total_cancelled") == 8)
    assert letters(staying) == "stays"
    assert service.batches() == [["first"], ["stays"]]
    assert "Traceback" not in service.log.read_text()


def health(service: Service) -> int:
    return int(service.http.get("/healthz").status_code)


def test_health_follows_the_age_of_the_running_batch_though_all_threads_wait(service: Service) -> None:
    assert health(service) == 200
    with service.busy():
        waiting = [service.asking(f"text {index:02}", FROM_THREAD) for index in range(50)]
        until(
            lambda: service.stat("queue_size") >= 40
        )  # more if there are two processes with 40 threads each
        until(lambda: health(service) == 503)
        said = service.http.get("/healthz").json()["detail"]
        assert re.fullmatch(r"A batch has been running for \d+\.\d s\.", said)
        assert service.http.get("/metrics").status_code == 200
    assert [letters(answer) for answer in waiting] == [f"text {index:02}" for index in range(50)]
    until(lambda: health(service) == 200)


def test_metrics_say_what_waits_and_runs(one_process: Service) -> None:
    service = one_process
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
    """Ask in one of many ways, right or wrong, and see to it that no other caller's name comes back."""
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
            assert hurried == texts or hurried[0] in {503, 504}
        case _:
            service.send(name, route).close()
