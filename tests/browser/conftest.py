"""Pages in the system's Chromium, headless, and what may not happen on any of them."""

import functools
import http.server
import shutil
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from importlib import resources

import pytest

from views import DESK, SITE

_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium here")
    with api.sync_playwright() as playwright:
        # Without its sandbox, which a container does not allow: all pages are our own.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable]:
    """Open an address; no console message, failed request or other host is forgiven."""
    troubles: list[str] = []
    contexts = []

    def open_page(address: str, width: int = DESK, scheme: str = "light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            bypass_csp=True,  # for axe, which comes from outside; the policy has a test of its own
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("requestfailed", lambda request: _note_failure(request, troubles))
        page.on("response", lambda answer: _note(answer, troubles))
        host = urllib.parse.urlparse(address).netloc
        page.on("request", lambda request: _note_host(request.url, host, troubles))
        page.goto(address, wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def _note_failure(request, troubles: list[str]) -> None:
    if "ERR_ABORTED" not in (request.failure or ""):  # by leaving the page
        troubles.append(f"failed: {request.url}")


def _note(answer, troubles: list[str]) -> None:
    if answer.status >= 400:
        troubles.append(f"{answer.status}: {answer.url}")


def _note_host(address: str, host: str, troubles: list[str]) -> None:
    parts = urllib.parse.urlparse(address)
    if parts.scheme not in ("data", "blob") and parts.netloc != host:
        troubles.append(f"another host: {address}")


@pytest.fixture(scope="session")
def look():
    """Asserts of a page: nothing sticks out sideways, pictures are drawn, axe has no complaint."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")

    def at(page) -> None:
        sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert sideways <= 0, f"{page.url} scrolls {sideways} pixels sideways"
        undrawn = page.evaluate(
            "[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.alt)"
        )
        assert undrawn == []
        page.evaluate(axe)
        found = page.evaluate(
            "async rules => (await axe.run({runOnly: rules})).violations.flatMap(v =>"
            " v.nodes.map(n => `${v.id}: ${n.html.slice(0, 120)}`))",
            _RULES,
        )
        assert found == [], f"{page.url}:\n" + "\n".join(found)

    return at


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The built site's address."""
    if not (SITE / "index.html").exists():
        pytest.fail(f"there is no site in {SITE}: run make test-browser")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
