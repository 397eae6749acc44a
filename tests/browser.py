"""A real Chromium, driven by its DevTools protocol; tests that need one are skipped where there is none."""

import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --remote-allow-origins=* "
    "--remote-debugging-port=0 --window-size=1200,900"
).split()


class Browser:
    """One page of a browser."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self.requests, self.errors = [], []

    def call(self, method, **parameters):
        """Send a command and return its answer; requests and errors that come meanwhile are noted."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"])
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def evaluate(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, path, *, script=True, dark=False, width=1200):
        """Open a file."""
        self.requests.clear()
        self.errors.clear()
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=Path(path).as_uri())
        deadline = time.monotonic() + 60
        # expressions are evaluated even where the page's own script is off
        while self.evaluate("document.readyState + location.href") != f"complete{Path(path).as_uri()}":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if script:  # until it is drawn
            self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def move(self, x, y):
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


@contextmanager
def chromium():
    """A browser with one empty page."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = f"http://127.0.0.1:{_port(Path(folder), started)}/json/list"
            with urllib.request.urlopen(address, timeout=60) as answer:
                pages = [each for each in json.load(answer) if each["type"] == "page"]
            socket = websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=60)
            yield Browser(socket)
            socket.close()
        finally:
            started.terminate()
            started.wait(30)


def _port(folder, started):
    """The port that the browser has chosen."""
    deadline = time.monotonic() + 60
    file = folder / "DevToolsActivePort"
    while time.monotonic() < deadline and started.poll() is None:
        if file.is_file() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    pytest.skip("the browser does not start here")
