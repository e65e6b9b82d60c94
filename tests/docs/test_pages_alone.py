"""What a page has its reader install is enough: each page with these libraries, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.page import PAGES, Page
from tests.kit.script import ROOT

pytestmark = pytest.mark.pages_alone

OWN = str(Path(sys.executable).parent)


def environment(folder: Path, needs: list[str]) -> Path:
    """Make an environment in `folder` with `needs`, and return where its commands are.

    uv takes from its cache what an earlier page has needed too.
    """
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, folder], check=True, timeout=60)
    if needs:
        install = [*uv, "pip", "install", "-q", "--system-certs", "--python", folder]
        constraints = ["-c", str(ROOT / ".ci" / "constraints.txt")]  # a torch without CUDA
        # Else uv knows nothing of where pip is told to look.
        links = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "").replace(" ", ",")}
        subprocess.run([*install, *constraints, *needs], check=True, timeout=400, env={**os.environ, **links})
    return folder / ("Scripts" if os.name == "nt" else "bin")


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a shell of Unix")
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.path.relative_to(ROOT))) for page in map(Page, PAGES) if page.is_run],
)
def test_a_page_installs_all_that_it_needs(page: Page, tmp_path: Path) -> None:
    """Its files, its commands and its examples."""
    commands = environment(tmp_path / "environment", page.needs)
    others = [place for place in os.environ["PATH"].split(os.pathsep) if place != OWN]
    path = os.pathsep.join([str(commands), *others])
    if missing := page.missing_servers(path):
        pytest.skip(f"there is no {', '.join(missing)}")
    folder = tmp_path / "page"
    folder.mkdir()
    page.run(folder, python=str(commands / "python"), path=path)
