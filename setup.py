"""The page of the package index: README, with absolute links once pyproject.toml has an address for them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent
SOURCE = re.compile(r'(?P<name>src|srcset)="(?P<path>(?!https?:)[^"]+)"')
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)]+)\)")


def with_links(text: str, repository: str | None) -> str:
    """Return `text` with links that lead to the repository, if its address is known."""
    if repository is None:
        return text
    link = rf"\g<picture>[\g<text>]({repository}/blob/main/\g<path>)"
    picture = rf"![\g<text>]({repository}/raw/main/\g<path>)"
    text = SOURCE.sub(rf'\g<name>="{repository}/raw/main/\g<path>"', text)
    return LINK.sub(lambda found: found.expand(picture if found["picture"] else link), text)


if __name__ == "__main__":
    from setuptools import setup

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    setup(
        long_description=with_links(
            (ROOT / "README.md").read_text("utf-8"), project.get("urls", {}).get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
