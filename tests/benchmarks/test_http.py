"""What the HTTP benchmark makes of its figures. Servers and load are its own business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.http.load import Cell, write_bodies
from benchmarks.http.models import Counts
from benchmarks.http.report import goal_results, trouble_results
from benchmarks.http.servers import SERVERS
from benchmarks.http.trouble import Trouble


def cell(server: str, rate: float, *, model: str = "4ms", connections: int = 8, p99_s: float = 1.0) -> Cell:
    return Cell(model, server, connections, rate, 0.5, p99_s, errors=0, cpu_s=0.0, batch=1.0)


def test_ours_is_compared_with_the_better_floor_of_each_round():
    cells = [
        *(cell("ours", 90), cell("greedy", 100), cell("patient", 50)),
        *(cell("ours", 80), cell("greedy", 50), cell("patient", 100)),
    ]
    floors = next(row for row in goal_results(cells) if row.name == "4ms / better floor, 8")
    assert floors.figures == (0.8, 0.9)
    assert floors.figure == pytest.approx(0.85)
    assert floors.met is False


def test_p99_is_compared_with_the_lowest_of_the_other_servers():
    at = {"model": "minilm", "connections": 32}
    cells = [
        cell("ours", 10, p99_s=1, **at),
        cell("mosec", 8, p99_s=4, **at),
        cell("ray", 4, p99_s=2, **at),
        cell("pieces", 20, p99_s=0.1, **at),
    ]
    rows = {row.name: row for row in goal_results(cells)}
    assert rows["minilm p99 / best peer, 32"].figure == 0.5
    assert rows["minilm p99 / best peer, 32"].beside == "Ray Serve"
    assert rows["minilm / best peer, 32"].figure == 1.25
    assert rows["minilm / best peer, 32"].beside == "mosec"


def test_what_was_not_measured_has_no_row():
    assert [row.name for row in goal_results([cell("ours", 1)])] == ["errors"]


def test_only_ours_has_goals_in_trouble():
    seen = [
        Trouble(name, 1, 1, 3, 30, 2, {}, exit_s=None, left_over=0)
        for name in ("ours", "mosec")
    ]  # fmt: skip
    rows = {row.name: row.figure for row in trouble_results(seen)}
    assert rows == {"strangers failed": 2, "executed for none": 3, "dropped at SIGTERM": 2}


@pytest.mark.parametrize("name", ["ours", "bentoml"])
def test_texts_are_the_same_for_all_and_as_long_as_promised(name: str, tmp_path: Path):
    bodies = write_bodies(SERVERS[name], tmp_path / name).read_text().splitlines()
    texts = [json.loads(body)["text"] for body in bodies]
    if name == "bentoml":
        texts = [text for (text,) in texts]
    words = [len(text.split()) for text in texts]
    assert sum(words) / len(words) == pytest.approx(24, abs=0.5)
    assert texts == [
        json.loads(body)["text"]
        for body in write_bodies(SERVERS["plain"], tmp_path / "plain").read_text().splitlines()
    ]


def test_counts_are_seen_by_another_process(tmp_path: Path):
    ours, theirs = Counts(tmp_path / "counts"), Counts(tmp_path / "counts")
    with theirs.batch(3):
        assert (ours.read(), ours.busy) == ((1, 3), True)
    with theirs.batch(4):
        pass
    assert (ours.read(), ours.busy) == ((2, 7), False)
