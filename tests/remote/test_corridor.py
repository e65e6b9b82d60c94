"""What an idle call of another process passes: so much, and no more.

To raise a figure takes a commit that says why. They are the least of many calls, at rest.
"""

from __future__ import annotations

import json
import socket
import textwrap

import pytest

from tests.kit.script import run_script

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs unix sockets")

FRAMES = {
    # kind of call: frames of the package for its caller, for the thread that reads, and for the server
    "fn(x)": (28, 11, 66),
    "await fn.acall(x)": (47, 0, 67),
}

COUNT = """
import json, tempfile

seen = []

def note(frame, event, _):
    if event != "call" or frame.f_code.co_filename == "<string>":  # as the `__init__` of a dataclass
        return
    if frame.f_globals.get("__name__", "").startswith("batched."):
        seen.append(threading.get_ident())

def same(items):
    return items

def count(call, calls=300):
    readers = {each.ident for each in threading.enumerate() if each.name.startswith("batched: unix")}
    found = []
    for _ in range(calls):
        seen.clear()
        call()
        time.sleep(0.001)
        idents = list(seen)
        mine = idents.count(threading.get_ident())
        reads = sum(ident in readers for ident in idents)
        found.append((mine, reads, len(idents) - mine - reads))
    return sorted(found, key=sum)[calls // 2]

threading.setprofile(note)
stop, is_ready = threading.Event(), threading.Event()
folder = tempfile.TemporaryDirectory()
options = {"bind": f"unix:{folder.name}/s", "stop": stop, "when_ready": lambda _: is_ready.set()}
server = threading.Thread(target=batched.serve, args=(batched.dynamically(same),), kwargs=options)
server.start()
assert is_ready.wait(20)
client = batched.connect(options["bind"])
loop = asyncio.new_event_loop()

async def ask():
    return await client.same.acall(1)

calls = {"fn(x)": lambda: client.same(1), "await fn.acall(x)": lambda: loop.run_until_complete(ask())}
counts = {}
for kind, call in calls.items():
    for _ in range(600):
        call()
    sys.setprofile(note)
    counts[kind] = count(call)
    sys.setprofile(None)
threading.setprofile(None)
client.close()
loop.run_until_complete(asyncio.sleep(0))
loop.close()
stop.set()
server.join(20)
folder.cleanup()
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[int, int, int]]:
    """For each kind of call, frames of its caller, of the thread that reads, and of the server."""
    said = run_script(textwrap.dedent(COUNT), counts_memory=True)
    found: dict[str, tuple[int, int, int]] = json.loads(said)
    return found


@pytest.mark.parametrize("kind", FRAMES)
def test_a_call_passes_no_more_than_it_did(kind: str, counts: dict[str, tuple[int, int, int]]) -> None:
    """At rest, once there is nothing new to learn."""
    for frames, most in zip(counts[kind], FRAMES[kind], strict=True):
        assert frames <= most, counts[kind]
