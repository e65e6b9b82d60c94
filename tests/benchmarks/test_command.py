"""What `python -m benchmarks` runs, lists, keeps and draws."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from benchmarks.kit.catalogue import CORE, FOLDERS, catalogue, choose
from benchmarks.kit.command import main
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import Goal, Row
from benchmarks.kit.run import run_rows
from benchmarks.kit.turns import Turns, Unavailable, using
from tests.kit.script import ROOT

QUICK = Effort(quick=True)


def names(*words: str) -> list[str]:
    return [str(one) for one in choose(words)]


def test_nothing_named_is_all_that_needs_no_model_server_or_cluster():
    assert {one.folder for one in choose([])} == set(CORE)
    assert choose([]) == choose(CORE)


def test_a_folder_is_all_of_it_and_names_in_it_are_those_only():
    assert names("overhead") == [str(one) for one in catalogue() if one.folder == "overhead"]
    assert names("overhead", "list") == names("list") == ["overhead list"]
    assert names("sync", "http") == ["overhead sync", "http services"]


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no benchmark 'lists'"):
        choose(["lists"])


def test_every_file_of_a_folder_is_listed_with_what_it_measures_and_beside_what(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    for benchmark in catalogue():
        assert benchmark.name in listed
        assert "beside" in benchmark.about
        assert benchmark.about in listed
    assert {one.folder for one in catalogue()} == set(FOLDERS)


def test_options_of_a_benchmark_do_not_clash_with_those_of_all():
    for benchmark in catalogue():
        if benchmark.is_program and benchmark.folder != "ray":  # which imports Ray
            parser = ArgumentParser()
            for option in ("--list", "--defaults", "--quick", "--json"):
                parser.add_argument(option)
            benchmark.load().PROGRAM.add_options(parser)


def test_commits_are_not_compared_by_a_benchmark_with_more_than_rows(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "HEAD", ".", "http"])
    assert "http services has more than rows" in capsys.readouterr().err


def test_what_is_found_is_kept_in_a_file_and_drawn_from_it(tmp_path: Path, capsys):
    file = tmp_path / "results.json"
    assert main(["method", "--quick", "--json", str(file)]) == 0
    assert "a call until it is queued" in capsys.readouterr().out
    told = json.loads(file.read_text())
    (rows,) = told["rows"].values()
    assert [row["name"] for row in rows] == [
        "method / function, at the door",
        "method / function, round trip",
    ]
    assert told["quick"] is True
    assert main(["compare", str(file), str(file)]) == 0
    assert "method / function, at the door" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert main(["picture", str(file), str(tmp_path / "picture.png")]) == 0
    assert (tmp_path / "picture.png").stat().st_size


def test_results_lie_where_git_ignores_them():
    assert "/benchmarks/results/" in (ROOT / ".gitignore").read_text().splitlines()


def rows_of(measure) -> tuple[Row, ...]:
    turns = Turns({"ours": using(pytest.MonkeyPatch.context, measure)}, rounds=2)
    return Row("a", "a", turns, "ours", goal=Goal(1.0)), Row("b", "b", turns, "ours")


def test_rows_with_the_same_contenders_are_measured_together():
    measured = []
    results = list(run_rows(rows_of(lambda *_: measured.append(1) or 1.0), Effort(), pytest.fail))
    assert [(row.name, row.ours, row.figure, row.met) for row in results] == [
        ("a", 1, 1, True),
        ("b", 1, 1, None),
    ]
    assert len(measured) == 2


def test_a_row_that_fails_says_so_and_one_without_its_neighbour_is_no_failure():
    def unavailable(*_):
        raise Unavailable("not installed")

    def fail(*_):
        raise RuntimeError("broken")

    reported = []
    results = list(run_rows((*rows_of(unavailable), *rows_of(fail)), Effort(), lambda: reported.append(1)))
    assert [(row.note, row.failed) for row in results] == [
        *[("not installed", False)] * 2,
        *[("RuntimeError('broken')", True)] * 2,
    ]
    assert [row.met for row in results] == [False, None, False, None]
    assert reported == [1]
