"""The site: what is published, and what would go unnoticed without a reader's browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.script import ROOT

PUBLISH = ROOT / ".ci" / "publish-site"
AS = ("-c", "user.name=a", "-c", "user.email=a@localhost")


def git(folder: Path, *arguments: str) -> str:
    """Return what git says in a folder."""
    command = ["git", *AS, *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, encoding="utf-8", timeout=30
    ).stdout


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("git"), reason="a script of Unix, for git")
def test_each_version_has_a_folder_and_the_list_names_all_newest_first(tmp_path: Path) -> None:
    """A version that is published again replaces its folder; the start leads to the newest release."""
    branch, clone, site = tmp_path / "branch", tmp_path / "clone", tmp_path / "site"
    git(tmp_path, "init", "--quiet", "--bare", str(branch))
    git(tmp_path, "clone", "--quiet", str(branch), str(clone))
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "main")
    site.mkdir()
    for folder, text in (("dev", "old"), ("v0.9.0", "9"), ("v0.10.0", "10"), ("dev", "new")):
        (site / "index.html").write_text(text)
        subprocess.run([PUBLISH, site, folder], cwd=clone, check=True, capture_output=True, timeout=30)

    published = {
        name: git(branch, "show", f"gh-pages:{name}") for name in ("dev/index.html", "v0.9.0/index.html")
    }
    assert published == {"dev/index.html": "new", "v0.9.0/index.html": "9"}
    assert json.loads(git(branch, "show", "gh-pages:versions.json")) == ["v0.10.0", "v0.9.0", "dev"]
    assert "url=v0.10.0/" in git(branch, "show", "gh-pages:index.html")
    assert git(clone, "worktree", "list").count("\n") == 1
