"""A real browser, driven through its DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def found() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of headless Chromium.

    Parameters
    ----------
    folder : str
        Where it keeps its profile.
    width : int
        The width of the window in pixels.
    """

    def __init__(self, folder: str, width: int) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def wired() -> None:  # it reads from 3 and writes to 4
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={folder}", f"--window-size={width},900", "about:blank"]
        command = [found() or "", *options]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=wired, close_fds=False, **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._number, self._rest = ours_in, ours_out, 0, b""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = ""
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask the browser for something; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", ""):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._read()
            if got.get("id") == self._number:
                assert "error" not in got, got
                return got["result"]
            self.events.append(got)

    def open(self, url: str) -> list[dict[str, Any]]:
        """Load a page; returns what happened on the way."""
        self.events = []
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")
        return self.events

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"{condition} did not come true"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression on the page."""
        got = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        return json.loads(text)
