"""The built site in a real browser: nothing is missing, broken, cut off, or fetched from elsewhere."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from site_browser import Browser, found

ROOT = Path(__file__).parents[2]
WIDTH = 1280
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(found() is None, reason="no Chromium here: `make site-test` installs it"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, built anew."""
    folder = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).parent / "mkdocs", "build", "--strict", "-q", "-d", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(str(tmp_path_factory.mktemp("profile")), WIDTH)
    yield made
    made.close()


def test_every_page(site, browser):
    address, folder = site
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    assert len(pages) > 25
    wrong, links = [], set()
    for page in pages:
        if page == "404.html":
            continue
        events = browser.open(f"{address}/{page}")
        browser.wait("document.querySelectorAll('.arithmatex:not(:has(.katex))').length === 0")
        for event in events + browser.events:
            wrong += [f"{page}: {said}" for said in complaints(event, address)]
        wide = browser.evaluate(
            "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
            ".map(wrap => [wrap.scrollWidth, wrap.clientWidth])"
        )
        wrong += [f"{page}: a table of {has} px in {room}" for has, room in wide if has > room + 1]
        broken = browser.evaluate(
            "[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
            ".concat([...document.querySelectorAll('.katex-error')].map(e => e.textContent))"
        )
        wrong += [f"{page}: {what}" for what in broken]
        links |= {(page, link) for link in browser.evaluate("[...document.links].map(l => l.href)")}
    for page, link in sorted(links):
        if link.startswith(address):
            path = folder / urlsplit(link).path.lstrip("/")
            if not (path.is_file() or (path / "index.html").is_file()):
                wrong.append(f"{page}: dead link {link}")
    assert not wrong, "\n".join(wrong[:40])


def complaints(event, address):
    """What an event of the browser says is wrong."""
    kind, details = event.get("method"), event.get("params", {})
    if kind == "Runtime.exceptionThrown":
        yield details["exceptionDetails"]["text"]
    if kind == "Log.entryAdded" and details["entry"]["level"] == "error":
        yield details["entry"]["text"]
    if kind == "Network.requestWillBeSent":
        url = details["request"]["url"]
        if not url.startswith((address, "data:", "blob:")):
            yield f"asks for {url}"


def test_the_search_finds_how_to_install(site, browser):
    browser.open(f"{site[0]}/index.html")
    browser.wait("document.querySelector('.md-search__input') !== null")
    browser.evaluate("""
        const field = document.querySelector(".md-search__input");
        field.focus();
        field.value = "install";
        for (const kind of ["input", "keyup"]) field.dispatchEvent(new Event(kind, {bubbles: true}));
    """)
    browser.wait("document.querySelectorAll('.md-search-result__link').length > 0")
    first = browser.evaluate("document.querySelector('.md-search-result__link').href")
    assert "start.html" in first, first
