"""Drives a headless Chromium over its DevTools protocol, for tests that look at pages as a person does.

The protocol's messages go through a pair of pipes (`--remote-debugging-pipe`), so that neither a driver program, a port
nor a package is needed. https://chromedevtools.github.io/devtools-protocol/ describes the methods.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars",
)  # fmt: skip

ANSWER_S = 120
"""Seconds after which a browser that does not answer fails the test. A busy machine needs 20 s to start one."""


def program() -> str | None:
    """Path of Chromium; None where it is not installed."""
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


class Page:
    """One page of a running browser.

    Attributes:
        errors: script errors and failed requests that the page reported so far.
        requests: addresses that the page asked for so far.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._buffer, self._number = commands, answers, b"", 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Result of one method of the protocol. Events that arrive meanwhile are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while True:
            found = self._read(until)
            assert found is not None, f"{method}: the browser did not answer in {ANSWER_S} s"
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window in CSS pixels, and light or dark colours. Narrow windows are those of phones."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def open(self, address: str) -> None:
        """Open an address afresh (also where only the part after `#` differs) and wait until the page has loaded."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """Value of a JavaScript expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> Any:
        """Value of an expression as soon as it is true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := self.value(script):
                return found
            self._note(0.1)
        raise AssertionError(f"not within {seconds} s: {script}; errors of the page: {self.errors}")

    def mouse(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        """Move the mouse to a place in CSS pixels, or press, release or turn its wheel there."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name: str) -> None:
        """Press and release a key, by its name in JavaScript (`ArrowLeft`, `w`)."""
        text = {"text": name} if len(name) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def picture(self, file: Path) -> None:
        """Write what the window shows as a PNG file."""
        file.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )

    def _note(self, seconds: float) -> None:
        """Note the events of the next moments."""
        until = time.monotonic() + seconds
        while self._read(until) is not None:
            pass

    def _read(self, until: float) -> dict[str, Any] | None:
        """The next message, noted if it is an event; None at the end of the time."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(until - time.monotonic(), 0))
            if not ready:
                return None
            got = os.read(self._answers, 1 << 20)
            assert got, "the browser ended"
            self._buffer += got
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        about = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(about["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        return message


@contextmanager
def running(profile: Path) -> Iterator[Page]:
    """A page in a browser of its own, which ends with the block.

    Args:
        profile: empty folder for the browser's own files.
    """
    command = program()
    assert command is not None
    # the browser reads commands from file 3 and writes answers to file 4
    piped = ["/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh"]
    options = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    started = subprocess.Popen(
        [*piped, command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert started.stdin is not None and started.stdout is not None
    try:
        yield Page(started.stdin.fileno(), started.stdout.fileno())
    finally:
        started.terminate()
        started.communicate(timeout=60)
