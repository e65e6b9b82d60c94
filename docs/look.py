"""Looks at the site as a reader does, with Chromium, and takes pictures: `python docs/look.py SITE PICTURES`.

On a phone and on a wide screen: no page is wider than the window, no line of code and no table is cut, no
error is in the console, each page describes itself, and few entries of the sidebar are in sight. Of each
kind of page there are pictures, light and dark, in which axe finds no serious fault and the text of
drawings is large enough. The list of versions is filled. A search for what `search.toml` has finds one of
its pages among the first three, or its page first.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from threading import Thread
from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

KINDS = (
    "index",
    "install",
    "tutorial",
    "how-to/index",
    "how-to/production",
    "how-to/fastapi",
    "explanation/failures",
    "reference/options",
    "reference/api",
    "reference/metrics",
    "reference/benchmarks",
    "coming-from/index",
    "coming-from/ray-serve",
)
"""A page of each kind."""
WIDTHS = (390, 1440)
SCHEMES = ("light", "dark")
JUDGED = {(390, "light"), (1440, "dark")}
"""Where axe looks, which takes seconds a page: each width and each scheme once."""
BAD = 400
"""Statuses of HTTP from here on are errors."""
GRAVE = {"serious", "critical"}
MOST_ENTRIES = 12
"""Of the sidebar, before any is opened."""
SMALLEST = 11
"""Height of the text of a drawing, in points of the screen."""
FIRST = 3
"""Results of a search among which the right page must be."""
VERSIONS = ["v0.2.0", "dev"]
SEARCHES = tomllib.loads(Path(__file__).with_name("search.toml").read_text("utf-8"))
WITHOUT_DESCRIPTION = {"genindex", "search"}
CUT = """
() => [...document.querySelectorAll("article *")]
  .filter(each => ["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX))
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.scrollWidth} of ${each.clientWidth} points: ${each.innerText.trim().slice(0, 80)}`)
"""
IN_SIGHT = """
() => [...document.querySelectorAll(".sidebar-tree a.reference")]
  .filter(each => each.checkVisibility()).length
"""
SMALL = """
async wide => {
  const small = [];
  for (const picture of document.querySelectorAll("article img[src$='.svg']")) {
    if (!picture.checkVisibility() || !(wide || picture.matches(".only-light, .only-dark"))) continue;
    const text = await (await fetch(picture.src)).text();
    const drawing = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    document.body.append(drawing);
    const scale = picture.clientWidth / drawing.viewBox.baseVal.width;
    for (const each of drawing.querySelectorAll("text")) {
      const size = parseFloat(getComputedStyle(each).fontSize) * scale;
      if (size < LEAST) small.push(`${each.textContent} has ${size.toFixed(1)} points in ${picture.src}`);
    }
    drawing.remove();
  }
  return small.slice(0, 3);
}
""".replace("LEAST", str(SMALLEST))
FOUND = """
count => document.querySelectorAll("ul.search > li").length >= count
  || document.querySelector(".search-summary")?.innerText
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


def read(browser: Browser, address: str, names: list[str]) -> Iterator[str]:
    """Yield what is wrong with any page."""
    page = browser.new_page()
    heard: list[str] = []
    page.on("console", lambda told: heard.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("response", lambda got: heard.append(f"{got.status} {got.url}") if got.status >= BAD else None)
    for name in names:
        heard.clear()
        with page.expect_response("**/versions.json"):  # what a page asks for last
            page.goto(f"{address}/dev/{name}.html")
        yield from (f"{name}: {fault}" for fault in heard)
        if name not in WITHOUT_DESCRIPTION and not page.locator("head > meta[name=description]").count():
            yield f"{name} does not say what it is about"
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            yield from (f"{name} at {width}: {fault}" for fault in page.evaluate(CUT))
            if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
                yield f"{name} takes {needed} of {width} points"
    page.goto(f"{address}/dev/index.html")
    if not 0 < (entries := page.evaluate(IN_SIGHT)) <= MOST_ENTRIES:
        yield f"{entries} entries of the sidebar are in sight"
    page.close()


def look(browser: Browser, address: str, pictures: Path) -> Iterator[str]:
    """Yield what is wrong with the sight of a page of each kind; leave pictures of them."""
    for width, scheme in ((width, scheme) for width in WIDTHS for scheme in SCHEMES):
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        page = context.new_page()
        for name in KINDS:
            page.goto(f"{address}/dev/{name}.html")
            picture = pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png"
            page.screenshot(path=picture, full_page=name == "index")
            faults = [
                *page.evaluate(SMALL, width > WIDTHS[0]),
                *(grave(page) if (width, scheme) in JUDGED else ()),
            ]
            yield from (f"{name} at {width}, {scheme}: {fault}" for fault in faults)
        page.goto(f"{address}/dev/index.html")
        shown = [
            each.get_attribute("class") for each in page.locator("article img").all() if each.is_visible()
        ]
        if shown != [f"only-{scheme}"]:
            yield f"the home page at {width}, {scheme}, shows the pictures {shown}"
        context.close()


def grave(page: Page) -> Iterator[str]:
    """Yield the grave faults that axe finds on the page that is shown."""
    for each in Axe().run(page).response["violations"]:
        if each["impact"] in GRAVE:
            yield f"{each['impact']}: {each['help']}, as in {each['nodes'][0]['html'][:200]}"


def use(browser: Browser, address: str) -> Iterator[str]:
    """Yield what does not work: the list of versions."""
    page = browser.new_page()
    page.route("**/versions.json", lambda route: route.fulfill(json=VERSIONS))  # as it is once published
    page.goto(f"{address}/dev/reference/api.html")
    page.wait_for_selector("#versions:not([hidden])")
    of_options = "all => all.map(each => [each.value, each.selected])"
    shown = page.eval_on_selector_all("#versions option", of_options)
    if shown != [[name, name == "dev"] for name in VERSIONS]:
        yield f"the list of versions is {shown}"
    page.select_option("#versions", VERSIONS[0])
    page.wait_for_url(f"{address}/{VERSIONS[0]}/reference/api.html")


def search(browser: Browser, address: str) -> Iterator[str]:
    """Yield the searches that do not find what they should."""
    page = browser.new_page()
    some = [(query, pages, FIRST) for query, pages in SEARCHES["finds"].items()]
    for query, right, among in [*some, *((query, [one], 1) for query, one in SEARCHES["first"].items())]:
        page.goto(f"{address}/dev/search.html?q={quote(query)}")
        page.wait_for_function(FOUND, arg=FIRST)
        links = "all => all.map(each => each.pathname.replace('/dev/', '').replace('.html', ''))"
        found = page.eval_on_selector_all("ul.search > li > a", links)[:among]
        if not set(found) & set(right):
            yield f"a search for {query!r} finds {', '.join(found) or 'nothing'}, not {' or '.join(right)}"


def main(site: str, pictures: str) -> None:
    """Serve the site as it is published, and look at it."""
    built = Path(site).resolve()
    names = sorted(str(file.relative_to(built).with_suffix("")) for file in built.rglob("*.html"))
    with tempfile.TemporaryDirectory() as folder:
        for name in VERSIONS:
            Path(folder, name).symlink_to(built)
        Path(pictures).mkdir(parents=True, exist_ok=True)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_port}"
            with sync_playwright() as playwright:
                chromium = playwright.chromium
                browser = chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
                faults = [
                    *read(browser, address, names),
                    *look(browser, address, Path(pictures)),
                    *use(browser, address),
                    *search(browser, address),
                ]
                browser.close()
            server.shutdown()
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main(*sys.argv[1:])
