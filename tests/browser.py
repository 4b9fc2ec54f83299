"""A headless Chromium, driven over a pipe with the DevTools protocol: real keys, its console, its requests."""

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe", "--window-size=1280,1600",
]  # fmt: skip
SECONDS = 120
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowUp": 38, "ArrowDown": 40}


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """One browser with one page at a time. What it notes is since `open`.

    errors:    of the console; requests: URLs asked for; forbidden: those that the page's own policy stopped
    dialogs:   what an alert said
    """

    def __init__(self, chromium: str, profile: Path) -> None:
        to_read, self._to_browser = os.pipe()
        self._from_browser, to_write = os.pipe()
        # The protocol's pipe is descriptors 3 and 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", script, "bash", chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        with open(os.devnull, "r+b") as null:
            self._process = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=null, pass_fds=(to_read, to_write)
            )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._reset()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._send("Browser.close", {})
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()
        os.close(self._to_browser)
        os.close(self._from_browser)

    def open(self, path: Path | str, fragment: str = "", color_scheme: str = "light") -> None:
        """Load a file, or a URL, in a new page and wait until it is loaded."""
        self._session = ""
        self._reset()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        features = [{"name": "prefers-color-scheme", "value": color_scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._loaded = False
        self.call("Page.navigate", url=(path if isinstance(path, str) else path.as_uri()) + fragment)
        deadline = time.monotonic() + SECONDS
        while not self._loaded:
            self._take(deadline)

    def wait_for(self, expression: str) -> None:
        """Wait until an expression of the page is true."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key, as from a keyboard."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        number = KEYS.get(key) or ord(key.upper())
        about = {"key": key, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Text, into what has the focus."""
        self.call("Input.insertText", text=text)

    def call(self, method: str, **params: Any) -> Any:
        number = self._send(method, params)
        deadline = time.monotonic() + SECONDS
        while True:
            message = self._take(deadline)
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    def _reset(self) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.forbidden: list[str] = []
        self._urls: dict[str, str] = {}
        self._loaded = False

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        return self._number

    def _take(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from_browser], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._from_browser, 1 << 16)
            assert received, "the browser is gone"
            self._buffer += received
        first, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(first)
        if message.get("sessionId", "") == self._session:
            self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self._urls[params["requestId"]] = params["request"]["url"]
            self.requests.append(params["request"]["url"])
        elif event == "Network.loadingFailed" and params.get("blockedReason") == "csp":
            self.forbidden.append(self._urls[params["requestId"]])
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
            self._send("Page.handleJavaScriptDialog", {"accept": True})
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif event == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
