"""A client of pyright's language server, which editors ask what a name means."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any, Self

SERVER = Path(sys.executable).with_name("pyright-langserver")


class Editor:
    """Has one file open, and asks about places in it: a place is where a text begins for the first time."""

    def __init__(self, folder: Path, text: str, *, search: Path) -> None:
        self._text = text
        self._ids = count(1)
        file = Path(folder, "opened.py")
        file.write_text(text, "utf-8")
        Path(folder, "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(search)]}), "utf-8")
        self._document = {"uri": file.as_uri()}
        self._server = subprocess.Popen(
            [SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        self._ask(
            "initialize",
            processId=None,
            rootUri=folder.as_uri(),
            workspaceFolders=[{"uri": folder.as_uri(), "name": folder.name}],
            capabilities={"textDocument": {"hover": {"contentFormat": ["markdown"]}}},
        )
        self._send({"method": "initialized", "params": {}})
        opened = {**self._document, "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        # The text has a fault: once that is told, the server has looked at all of it, as in an editor.
        while not self._read().get("params", {}).get("diagnostics"):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.communicate()

    def hover(self, place: str) -> str:
        """Return what is shown above the name that begins at `place`."""
        shown = self._ask("textDocument/hover", **self._at(self._text.index(place)))
        return str(shown["contents"]["value"]) if shown else ""

    def completions(self, before: str) -> list[str]:
        """Return the names that are offered behind the text `before`."""
        found = self._ask("textDocument/completion", **self._at(self._text.index(before) + len(before)))
        return [str(item["label"]) for item in found["items"]]

    def _at(self, index: int) -> dict[str, Any]:
        line = self._text.count("\n", 0, index)
        character = index - self._text.rfind("\n", 0, index) - 1
        return {"textDocument": self._document, "position": {"line": line, "character": character}}

    def _ask(self, method: str, **params: Any) -> Any:
        request = next(self._ids)
        self._send({"id": request, "method": method, "params": params})
        while True:
            message = self._read()
            if "method" not in message and message.get("id") == request:
                return message["result"]

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._server.stdin is not None
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        self._server.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        length = 0
        while line := self._server.stdout.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        message = dict(json.loads(self._server.stdout.read(length)))
        if "method" in message and "id" in message:  # the server asks for settings: there are none
            settings = [{} for _ in message["params"].get("items", ())]
            self._send({"id": message["id"], "result": settings or None})
        return message
