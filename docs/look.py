"""Looks at the site as a reader does, with Chromium, and takes pictures: `python docs/look.py SITE PICTURES`.

On a telephone and on a screen, light and dark: no page is wider than the window, axe finds no serious fault,
the list of versions is filled, and a search finds something.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from threading import Thread

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

PAGES = (
    "index",
    "how-to/cache",
    "explanation/failures",
    "reference/api",
    "reference/options",
    "reference/benchmarks",
)
WINDOWS = ((390, "light"), (390, "dark"), (1280, "light"), (1280, "dark"))
JUDGED = {(390, "light"), (1280, "dark")}
"""Where axe looks, which takes seconds a page: each width and each scheme once."""
GRAVE = {"serious", "critical"}
VERSIONS = ["v0.2.0", "dev"]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


def look(browser: Browser, address: str, pictures: Path) -> Iterator[str]:
    """Yield what is wrong with the pages; leave pictures of them."""
    for width, scheme in WINDOWS:
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        page = context.new_page()
        for name in PAGES:
            page.goto(f"{address}/dev/{name}.html")
            page.screenshot(path=pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png")
            if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
                yield f"{name} takes {needed} of {width} points"
            if (width, scheme) in JUDGED:
                yield from (f"{name} at {width}, {scheme}: {fault}" for fault in grave(page))
        context.close()


def grave(page: Page) -> Iterator[str]:
    """Yield the grave faults that axe finds on the page that is shown."""
    for each in Axe().run(page).response["violations"]:
        if each["impact"] in GRAVE:
            yield f"{each['impact']}: {each['help']}, as in {each['nodes'][0]['html'][:200]}"


def use(browser: Browser, address: str) -> Iterator[str]:
    """Yield what does not work: the list of versions, the search."""
    page = browser.new_page()
    page.goto(f"{address}/dev/reference/api.html")
    page.wait_for_selector(".versions:not([hidden])")
    of_options = "all => all.map(each => [each.value, each.selected])"
    shown = page.eval_on_selector_all("#versions option", of_options)
    if shown != [[name, name == "dev"] for name in VERSIONS]:
        yield f"the list of versions is {shown}"
    page.select_option("#versions", VERSIONS[0])
    page.wait_for_url(f"{address}/{VERSIONS[0]}/reference/api.html")
    page.goto(f"{address}/dev/search.html?q=max_queue_size")
    page.wait_for_selector("ul.search li")


def main(site: str, pictures: str) -> None:
    """Serve the site as it is published, and look at it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "versions.json").write_text(json.dumps(VERSIONS), "utf-8")
        for name in VERSIONS:
            Path(folder, name).symlink_to(Path(site).resolve())
        Path(pictures).mkdir(parents=True, exist_ok=True)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_port}"
            with sync_playwright() as playwright:
                chromium = playwright.chromium
                browser = chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
                faults = [*look(browser, address, Path(pictures)), *use(browser, address)]
                browser.close()
            server.shutdown()
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main(*sys.argv[1:])
