"""`python -m batched.demo`, run as its users run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import unicodedata
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import pytest

from tests.kit.effort import is_thorough
from tests.kit.script import PACKAGE, ROOT

TIME_LIMIT_S = 50.0  # it takes about two seconds on an idle machine
OF_TERMINALS = {"COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in OF_TERMINALS}
DEMO = ["-m", "batched.demo", "--quick"]
SMALL = "import sys; sys.argv[1:] = ['--quick']\nfrom batched import demo\ndemo.LAYERS = (1024, 2048, 256)\n"
"""The beginning of a script that runs the demo with a tenth of the work."""


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; its output is not a terminal."""
    return subprocess.run(
        [sys.executable, *args],
        check=False,
        stdin=subprocess.DEVNULL,  # a terminal there would say how wide the output is
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT | environment,
        timeout=TIME_LIMIT_S,
    )


@cache
def printed() -> str:
    """Return what the demo prints into a pipe."""
    demo = run("-c", SMALL + "sys.exit(demo.main())")
    assert demo.stderr == ""
    assert demo.returncode == 0
    return demo.stdout


def code_in(text: str) -> list[str]:
    """Return the indented lines of code at the beginning of the output, without what they stand for."""
    head = text.partition("one by one: ")[0]
    return [line.partition("  #")[0].rstrip() for line in head.splitlines() if line.startswith("    ")]


class Row(NamedTuple):
    """A row of the table."""

    items: int
    seconds: float
    rate: int
    latencies: list[int]
    speed_up: float | None


ROW = re.compile(r"  (\w[\w ]*?) +([\d,]+) +([\d,.]+\.\d\d) +([\d,]+)((?: +[\d,]+){2})?(?: +([\d,.]+) x)? *")


def integer(text: str) -> int:
    return int(text.replace(",", ""))


def rounds() -> tuple[dict[str, Row], dict[str, Row]]:
    """Return the rows of both rounds by their callers."""
    both: tuple[dict[str, Row], dict[str, Row]] = ({}, {})
    for row in filter(None, map(ROW.fullmatch, printed().splitlines())):
        name, items, seconds, rate, latencies, speed_up = row.groups()
        both[speed_up is not None][name] = Row(
            integer(items),
            float(seconds.replace(",", "")),
            integer(rate),
            [integer(each) for each in (latencies or "").split()],
            None if speed_up is None else float(speed_up.replace(",", "")),
        )
    return both


def test_it_shows_both_rounds_and_verifies_every_answer() -> None:
    """A table has all callers in both rounds, and as many answers are verified as there were items."""
    alone, shared = rounds()
    assert (
        list(alone)
        == list(shared)
        == ["16 threads", "64 asyncio tasks", "a list of 80", "all three together"]
    )
    asked = shared["all three together"].items
    assert f"\nAll {asked:,} answers verified against the plain function.\n" in printed()


@pytest.mark.parametrize("number", [0, 1], ids=["one by one", "batched"])
def test_what_a_reader_adds_up_is_right(number: int) -> None:
    """Items add up, the slowest sets the seconds, and a rate is that of its own row."""
    *each, together = rounds()[number].values()
    assert together.items == sum(row.items for row in each)
    assert together.seconds == max(row.seconds for row in each)
    for row in (*each, together):
        least, most = row.items / (row.seconds + 0.005), row.items / max(row.seconds - 0.005, 1e-9)
        assert least - 0.5 <= row.rate <= most + 0.5


def test_speed_ups_are_those_of_the_rates() -> None:
    """Each is that of its callers in the round before."""
    alone, shared = rounds()
    for name, row in shared.items():
        before = alone[name].rate
        assert row.speed_up is not None
        assert (row.rate - 0.5) / (before + 0.5) - 0.05 <= row.speed_up
        assert row.speed_up <= (row.rate + 0.5) / (before - 0.5) + 0.05


def test_a_list_has_one_time() -> None:
    """Percentiles are those of calls with one item: of a list, and of all callers, there are none."""
    for outcomes in rounds():
        threads, tasks, as_list, together = outcomes.values()
        assert as_list.latencies == together.latencies == []
        for row in (threads, tasks):
            p50, p99 = row.latencies
            assert p50 <= p99


def test_it_first_says_what_it_runs() -> None:
    """The size is that of the arrays that are there; by default, the demo of full size is left then."""
    first = "A numpy network, {} MB of weights, on one core. Nothing sleeps."
    assert printed().splitlines()[0] == first.format(10)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *DEMO],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        encoding="utf-8",
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
    ) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline().rstrip() == first.format(88)
        if not is_thorough():
            demo.kill()
            return
        assert demo.communicate(timeout=TIME_LIMIT_S)[1] == ""
        assert demo.returncode == 0


def test_it_runs_on_one_core_whatever_the_shell_says() -> None:
    """The libraries that do the arithmetic have one thread each."""
    wished = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    threads = run(
        "-c",
        "from batched import demo\n"
        "import threadpoolctl\n"
        "print({library['num_threads'] for library in threadpoolctl.threadpool_info()})",
        **wished,
    )
    assert threads.stdout == "{1}\n", threads.stderr


def test_the_code_that_it_shows_is_the_code_that_runs() -> None:
    """Each line that is shown is executed, as it stands in the file of the demo."""
    traced = run(
        "-c",
        SMALL + "import linecache, threading\n"
        "numbers = set()\n"
        "def trace(frame, event, arg):\n"
        "    if frame.f_code.co_filename == demo.__file__:\n"
        "        numbers.add(frame.f_lineno)\n"
        "        return trace\n"
        "threading.settrace(trace)\n"
        "sys.settrace(trace)\n"
        "status = demo.main()\n"
        "sys.settrace(None)\n"
        "print('THESE LINES RAN')\n"
        "print(*(linecache.getline(demo.__file__, number).strip() for number in numbers), sep='\\n')\n"
        "sys.exit(status)",
    )
    assert traced.returncode == 0, traced.stderr
    output, _, lines = traced.stdout.partition("THESE LINES RAN\n")
    shown = code_in(output)
    assert shown == code_in(printed())
    assert shown[0].strip() == "@batched.dynamically"
    assert len(shown) == 6
    assert "\n".join(shown[:3]) in (PACKAGE / "demo.py").read_text()
    assert {line.strip() for line in shown} <= set(lines.splitlines())


def test_it_ends_with_what_the_batcher_says_and_the_next_step() -> None:
    """The sentences are those of `explain()`; the pages that are named are there."""
    *_, explained, following = printed().split("\n\n")
    assert "\n    print(predict.explain())\n\n" + explained in printed()
    assert re.search(r"^Batches have [\d.]+ items on average, out of a possible 64;", explained, re.MULTILINE)
    assert following.startswith("Next:\n")
    pages = re.findall(r"docs/\S+", following)
    assert "docs/tutorial.md" in pages
    assert "docs/reference/options.md" in pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    assert f"python {' '.join(DEMO)} " in following


def test_in_a_pipe_it_is_plain_text_of_80_columns() -> None:
    """No escape sequences, no lines that are drawn again."""
    strange = [char for char in printed() if unicodedata.category(char) == "Cc" and char != "\n"]
    assert strange == []
    assert max(map(len, printed().splitlines())) <= 80


def in_a_terminal(*, interrupted: bool = False, **environment: str) -> str:
    """Return what the demo writes to a terminal of 80 columns; it may be `interrupted` in its first round."""
    pty = pytest.importorskip("pty", reason="needs the terminals of POSIX")
    ours, theirs = pty.openpty()
    sizes = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    demo = subprocess.Popen(
        [sys.executable, "-c", SMALL + "sys.exit(demo.main())"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT | sizes | environment,
    )
    os.close(theirs)
    parts = []
    status = 0
    with suppress(OSError):  # so Linux says that the other end is closed
        while part := os.read(ours, 65536):
            parts.append(part)
            if interrupted and b"one by one: " in part:
                os.kill(demo.pid, signal.SIGINT)
                interrupted = False
                status = 130
    os.close(ours)
    assert demo.wait(TIME_LIMIT_S) == status
    return b"".join(parts).decode()


COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:[34]\d|9[0-7]|10[0-7])[;\d]*m")


def test_in_a_terminal_the_line_that_makes_the_difference_is_highlighted() -> None:
    """All of it has a color, and it stands alone in its line."""
    line = next(line for line in in_a_terminal().splitlines() if "batched" in line)
    assert re.sub(r"\x1b\[[\d;]*m", "", line) == "    @batched.dynamically"
    assert re.sub(COLOR.pattern + r"[^\x1b]*\x1b\[0m", "", line).strip() == ""


def test_ctrl_c_ends_it_in_the_midst_of_a_round() -> None:
    """Without a traceback, and the terminal has its cursor back."""
    text = in_a_terminal(interrupted=True)
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") > 0
    assert "Traceback" not in text
    assert "batched: 16 threads" not in text


def test_without_colors_there_are_none() -> None:
    """`NO_COLOR` is heeded, in the code too."""
    text = in_a_terminal(NO_COLOR="1")
    assert "@batched.dynamically\r\n" in re.sub(r"\x1b\[[\d;]*m", "", text)
    assert COLOR.findall(text) == []


def test_it_fails_when_an_answer_is_not_that_of_the_plain_function() -> None:
    """A network that mixes up the rows of a batch is found out: the exit status is 1."""
    demo = run(
        "-c",
        SMALL + "forward = demo.Network.forward\n"
        "demo.Network.forward = lambda self, vectors: forward(self, vectors)[::-1]\n"
        "sys.exit(demo.main())",
    )
    assert demo.stderr == ""
    assert demo.returncode == 1
    assert "Some answers differ" in demo.stdout
    assert "verified" not in demo.stdout


@pytest.mark.parametrize("package", ["numpy", "rich"])
def test_it_says_what_it_lacks(package: str) -> None:
    """Without its extra it prints the one line that helps, and exits with 1."""
    demo = run(
        "-c",
        f"import runpy, sys; sys.modules['{package}'] = None\n"
        "runpy.run_module('batched.demo', run_name='__main__')",
    )
    assert demo.returncode == 1
    assert demo.stdout == ""
    assert demo.stderr == f"The demo needs {package}: pip install {package}\n"
