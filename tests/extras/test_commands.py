"""The commands `profile` and `top` of `python -m batched`: what they print, and how they refuse."""

from __future__ import annotations

import json
import os
import signal
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest

from batched.__main__ import main
from tests.kit.gate import PATIENCE_S
from tests.kit.script import ROOT

pytest.importorskip("rich")

MODULE = """
import time

import batched
import batched.inference

@batched.dynamically(batch_size=4)
def embed(texts):
    return texts

@batched.dynamically
def joined(lefts, rights):
    return [left + right for left, right in zip(lefts, rights)]

@batched.dynamically(batch_size=4)
def slow(texts):
    time.sleep(0.001)
    return texts

@batched.dynamically
def fail(texts):
    raise ValueError("the function's own")

@batched.inference.dynamically(batch_size=4)
def sums(features):
    return features["ids"].sum(axis=1)

@batched.dynamically(batch_size=4)
def loud(texts):
    print("of the model")
    return texts
"""


INTERRUPTED = """
import signal

@batched.dynamically
def stop(texts):
    signal.raise_signal(signal.SIGINT)
    return texts
"""


PIPE_BROKEN = """
@batched.dynamically
def broken(texts):
    raise BrokenPipeError("of the function")
"""


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Items in a file, beside a module of functions."""
    (tmp_path / "module_of_commands.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_of_commands", raising=False)
    file = tmp_path / "items.jsonl"
    file.write_text('"a"\n\n"a text\u2028in two lines"\n', "utf-8")
    return file


def status_of(*arguments: object) -> object:
    """Run a command; return the status of its process."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


def test_a_profile_is_shown(items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As tables with advice, as JSON, and as a picture."""
    pytest.importorskip("matplotlib")
    asked = ("profile", "module_of_commands:embed", "--items", items, "--repeats", 1)
    assert status_of(*asked, "--plot", tmp_path / "curve.png") == 0
    shown = capsys.readouterr().out
    assert "batches of embed" in shown
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert status_of(*asked, "--json", "--sizes", "1,2") == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["size"] for each in told["measured"]] == [1, 2]


def test_what_a_function_prints_is_not_among_the_figures(
    items: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program reads these as JSON."""
    assert status_of("profile", "module_of_commands:loud", "--items", items, "--json", "--repeats", 1) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == "loud"
    assert "of the model" in shown.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_output_that_is_not_read_to_its_end_is_no_error(items: Path, form: list[str]) -> None:
    """As with `| head -1`: no traceback."""
    asked = ["profile", "module_of_commands:embed", "--items", str(items), "--repeats", "1", *form]
    command = [sys.executable, "-m", "batched", *asked]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(items.parent)])}
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize("width", [30, 45, 59, 60, 80])
def test_figures_are_whole_however_narrow_the_terminal_is(
    items: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A figure of which a part is left out would be another one."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert status_of("profile", "module_of_commands:slow", "--items", items, "--repeats", 1) == 0
    shown = capsys.readouterr().out
    assert "to expect" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width


def test_an_output_without_blocks_and_arrows_has_others(items: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on Windows has a code page, which knows neither."""
    output = TextIOWrapper(BytesIO(), "cp1252")
    monkeypatch.setattr(sys, "stdout", output)
    assert status_of("profile", "module_of_commands:embed", "--items", items, "--repeats", 1) == 0
    output.seek(0)
    assert "| 1    |" in (shown := output.read())
    assert "####" in shown


def test_a_broken_pipe_of_the_function_is_its_error(items: Path) -> None:
    """It is not taken for an output that nothing reads."""
    module = items.parent / "module_of_commands.py"
    module.write_text(module.read_text() + PIPE_BROKEN)
    with pytest.raises(BrokenPipeError, match="of the function"):
        main(["profile", "module_of_commands:broken", "--items", str(items), "--repeats", "1"])


def test_a_function_over_arrays_has_features_in_its_file(
    items: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a row in each line, or those of all rows as numpy saves them."""
    items.write_text('{"ids": [1, 2, 3]}\n{"ids": [4]}\n', "utf-8")
    saved = items.with_suffix(".npz")
    np.savez(saved, ids=np.ones((3, 2)))
    for file in (items, saved):
        assert status_of("profile", "module_of_commands:sums", "--items", file, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert [each["size"] for each in told["measured"]] == [1, 2, 4, 8]
        assert told["measured"][-1]["longest"] == (2 if file is saved else pytest.approx(2.5, abs=0.6))


@pytest.mark.parametrize(
    ("function", "name", "says"),
    [
        ("sums", "items.jsonl", "items.jsonl:1 is no object"),
        ("sums", "items.npz", "is not what numpy.savez writes"),
        ("embed", "items.npz", "holds arrays, and the function takes a list"),
    ],
)
def test_files_of_another_kind_are_refused(
    items: Path, capsys: pytest.CaptureFixture[str], function: str, name: str, says: str
) -> None:
    """Before anything runs."""
    file = items.with_name(name)
    file.write_bytes(b"PK\x03\x04" if file.suffix == ".npz" else b"[1, 2]")
    assert status_of("profile", f"module_of_commands:{function}", "--items", file) == 2
    assert says in capsys.readouterr().err


def test_files_of_another_kind_are_named(items: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An array alone, one of objects, an empty file, another encoding, lists of unequal lengths."""
    alone, objects, empty, text, lists = (
        items.with_name(name)
        for name in ("alone.npz", "objects.npz", "empty.npz", "latin.jsonl", "lists.jsonl")
    )
    with alone.open("wb") as file:
        np.save(file, np.ones(3))
    np.savez(objects, ids=np.array([{}], object))
    empty.touch()
    text.write_bytes('"ü"'.encode("latin-1"))
    lists.write_text('{"ids": [[1, 2], [3]]}')
    says = "is not what numpy.savez writes"
    for path, why in {
        alone: says,
        objects: says,
        empty: says,
        text: "is no text in UTF-8",
        lists: "has a feature that is no array",
    }.items():
        assert status_of("profile", "module_of_commands:sums", "--items", path) == 2
        told = capsys.readouterr().err
        assert str(path) in told
        assert why in told


@pytest.mark.parametrize(
    ("function", "line", "says"),
    [
        ("module_of_commands:embd", '"a"', "has no embd"),
        ("module_of_commands:batched", '"a"', "is no function, but module"),
        ("module_of_commands:embed", "no json", "is no JSON"),
        pytest.param("module_of_commands:embed", "[" * 100_000, "is no JSON", id="too deep"),
        ("module_of_commands:embed", "", "at least one"),
        ("module_of_commands:fail", '"a"', "module_of_commands.py:22: ValueError: the function's own"),
        ("module_of_commands:joined", '["a", "b"]\n["c"]', "argument: 'rights'; it is item 2 of the items"),
        ("module_of_commands:joined", '["a", 1]', "TypeError"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    items: Path, capsys: pytest.CaptureFixture[str], function: str, line: str, says: str
) -> None:
    """And a status that is not 0."""
    items.write_text(line)
    assert status_of("profile", function, "--items", items) == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_ends_a_command_without_a_word(
    items: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Its status is that of other commands of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    module = items.with_name("module_of_commands.py")
    module.write_text(MODULE + INTERRUPTED)
    assert status_of("profile", "module_of_commands:stop", "--items", items) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--plot=there is no such folder/curve.png", "No such file or directory"),
        ("--plot=curve.xyz", "Format 'xyz' is not supported"),
        ("--sizes=1,b", "sizes are numbers such as 1,8,64, got '1,b'"),
    ],
)
def test_options_that_cannot_be_are_one_line_before_anything_runs(
    items: Path, capsys: pytest.CaptureFixture[str], option: str, says: str
) -> None:
    """What was measured would be lost."""
    pytest.importorskip("matplotlib")
    assert status_of("profile", "module_of_commands:fail", "--items", items, option) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_is_missing_is_found_before_the_module_is_imported(
    items: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model may take minutes to load."""
    assert status_of("profile", "module_of_commands:embed", "--items", items.with_name("none")) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert "module_of_commands" not in sys.modules


def test_a_file_is_of_the_folder_of_the_command(
    items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the module goes to another folder as it is imported."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_commands.py").write_text(f"import os\nos.chdir('elsewhere')\n{MODULE}")
    asked = ("profile", "module_of_commands:embed", "--items", items.name, "--json", "--repeats", 1)
    assert status_of(*asked) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/metrics", "http://127.0.0.1:9/a b", "http://[::1", ""])
def test_a_page_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """At the first look; it names the address."""
    pytest.importorskip("prometheus_client")
    assert status_of("top", url) == 2
    assert f"python -m batched top: {url} cannot be read: " in capsys.readouterr().err
