"""The built site in a real browser: nothing is missing, broken, cut off, or fetched from elsewhere."""

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from site_browser import Browser, found

ROOT = Path(__file__).parents[2]
WIDTH = 1280
INTERNAL = ("internals", "base-classes")
TELEPHONE = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(found() is None, reason="no Chromium here: `make site-test` installs it"),
]


@pytest.fixture(scope="module")
def folder():
    """The site, built anew by the command of `make docs`."""
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    command = [Path(sys.executable).parent / "zensical", "build", "--clean", "--strict"]
    command += ["--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


@pytest.fixture(scope="module")
def site(folder):
    """The address of the site from a server, and its folder."""

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


@pytest.mark.parametrize("way", ["from a server", "from a folder"])
def test_the_search_finds_how_to_install(site, browser, way):
    address = site[0] if way == "from a server" else site[1].as_uri()
    browser.open(f"{address}/index.html")
    browser.wait("document.querySelector('.md-search__button') !== null")
    browser.evaluate("document.querySelector('.md-search__button').click()")
    inside = "[...document.querySelectorAll('*')].find(e => e.shadowRoot?.querySelector('dialog'))"
    browser.wait(f"{inside}?.shadowRoot.activeElement?.tagName === 'INPUT'")
    browser.call("Input.insertText", text="install")
    browser.wait(f"{inside}.shadowRoot.querySelector('[role=option] mark') !== null")
    first = browser.evaluate(f"{inside}.shadowRoot.querySelector('[role=option]').href")
    assert "start.html" in first and first.startswith(address), first


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_on_a_telephone(site, tmp_path, scheme):
    address, folder = site
    browser = Browser(str(tmp_path), WIDTH)  # a new one: the scheme of earlier pages is kept
    browser.call("Emulation.setDeviceMetricsOverride", **TELEPHONE)
    wish = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", features=[wish])
    wrong = []
    for page in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html")):
        browser.open(f"{address}/{page}")
        browser.wait("document.querySelectorAll('.arithmatex:not(:has(.katex))').length === 0")
        has = browser.evaluate("document.documentElement.scrollWidth")
        shown = browser.evaluate("document.body.dataset.mdColorScheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]
        if has > TELEPHONE["width"]:
            wrong.append(f"{page}: {has} px in {TELEPHONE['width']}")
    browser.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("width", [360, 700])
def test_letters_of_pictures_can_be_read_on_a_telephone(site, tmp_path, width):
    """Pictures have 150 dots an inch: at half their size, letters of 9 points are 9 pixels high."""
    address, folder = site
    browser = Browser(str(tmp_path), WIDTH)
    browser.call("Emulation.setDeviceMetricsOverride", **{**TELEPHONE, "width": width})
    seen, small = 0, []
    for page in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html")):
        browser.open(f"{address}/{page}")
        sizes = browser.evaluate(
            "[...document.querySelectorAll('.md-typeset p > img')]"
            ".map(i => [i.src, i.clientWidth, i.naturalWidth])"
        )
        seen += len(sizes)
        small += [
            f"{name}: {shown} of {has} px" for name, shown, has in sizes if shown < 0.49 * has
        ]
    browser.close()
    assert seen > 25 and not small, "\n".join(small)


def test_pages_for_users_show_types(folder):
    """`Any` says nothing: the tables have the types of the docstrings."""
    pages = [page for page in folder.glob("api/*.html") if page.stem not in INTERNAL]
    assert len(pages) > 7
    told = {page.stem: re.findall(r">Any<|: Any\b", page.read_text()) for page in pages}
    assert not {name: found for name, found in told.items() if found}
