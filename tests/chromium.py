"""A headless Chromium for the tests of pages, spoken to through its debugging pipe."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = (
    "no Chromium here: apt-get install chromium (Debian, Ubuntu), or put one of "
    + ", ".join(NAMES)
    + " on the PATH"
)


class Page:
    """One page, with what it logged and what it asked the network for."""

    def __init__(self, send, receive):
        self._send, self._receive = send, receive
        self._number, self._session = 0, None
        self.messages, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self, _buffer=[b""]):  # noqa: B006 (what is left of the pipe between calls)
        while b"\0" not in _buffer[0]:
            part = os.read(self._receive, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has gone away")
            _buffer[0] += part
        one, _, _buffer[0] = _buffer[0].partition(b"\0")
        answer = json.loads(one)
        method, found = answer.get("method"), answer.get("params", {})
        if method == "Log.entryAdded":
            self.messages.append(found["entry"]["text"])
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.messages.append(json.dumps(found))
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        return answer

    def open(self, path, width=1200, dark=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + 30
        while self.ask("document.readyState") != "complete" or not self.ask(
            "[...document.images].every(i => i.complete)"
        ):
            assert time.monotonic() < end, "the page does not finish loading"
            time.sleep(0.05)

    def ask(self, expression):
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path):
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=self._whole())
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def _whole(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}


@contextlib.contextmanager
def open_browser():
    """A `Page`; skips the test, and says how to get a Chromium, where there is none."""
    program = next((found for found in map(shutil.which, NAMES) if found), None)
    if program is None:
        pytest.skip(HOW)
    command_in, send = os.pipe()
    receive, command_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
        ]
        options += [
            "--disable-dev-shm-usage",
            "--no-sandbox",
        ]  # as root, and in containers, there is no sandbox
        script = f'exec "$0" "$@" 3<&{command_in} 4>&{command_out}'
        process = subprocess.Popen(
            ["bash", "-c", script, program, *options],
            pass_fds=(command_in, command_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_in)
        os.close(command_out)
        try:
            yield Page(send, receive)
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(send)
            os.close(receive)
