"""Pages opened in a real browser: Chromium, without a window and without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import matplotlib.image
import numpy as np
import numpy.typing as npt

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Opened:
    """What a browser made of a page.

    Attributes:
        console: What it wrote to the console.
        asked: The addresses that the page asked for, but for its own.
        pixels: What it shows: int64 (height, width, 3), 0 to 255.
    """

    console: list[str]
    asked: list[str]
    pixels: npt.NDArray[np.int64]


def browser() -> str | None:
    """The browser's path, or ``None``."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page; no name of another machine can be looked up."""
    command = [
        str(browser()),
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={page.parent / 'profile'}",
        *(["--no-sandbox"] if os.getuid() == 0 else []),
        *options,
        page.as_uri(),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def look(page: Path, width: int = 1000, height: int = 1200, *options: str) -> Opened:
    """Open a page, listen to its console and to what it asks for, and take a picture."""
    net, shot = page.with_suffix(".net.json"), page.with_suffix(".png")
    done = run(
        page,
        f"--window-size={width},{height}",
        "--enable-logging=stderr",
        f"--log-net-log={net}",
        f"--screenshot={shot}",
        *options,
    )
    console = re.findall(r":CONSOLE[:(].*", done.stderr)
    pixels = np.round(255 * matplotlib.image.imread(shot)[:, :, :3]).astype(np.int64)
    return Opened(console, _asked(json.loads(net.read_text("utf-8"))), pixels)


def _asked(log: dict[str, object]) -> list[str]:
    """Addresses asked for by a page; the browser's own requests have no origin."""
    constants, events = log["constants"], log["events"]
    assert isinstance(constants, dict)
    assert isinstance(events, list)
    start = constants["logEventTypes"]["URL_REQUEST_START_JOB"]
    params = [event["params"] for event in events if event["type"] == start and "params" in event]
    return [one["url"] for one in params if "url" in one and one.get("initiator") != "not an origin"]


def dom(page: Path) -> str:
    """The document as the browser understood it."""
    return run(page, "--dump-dom").stdout
