"""Posts alarms to a URL from a thread of its own, so that a slow or dead server costs the run nothing."""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from typing import Any

from composer_mixmon.config import Webhook

__all__ = ["Webhooks"]

log = logging.getLogger("composer_mixmon")

_TIMEOUT_S = 5.0


class Webhooks:
    """The posts under way.

    Each has five seconds; one that fails costs a warning, and only the first does.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._warned = False

    def post(self, webhook: Webhook, event: dict[str, Any]) -> None:
        """Send an event as a JSON POST; returns at once."""
        body = json.dumps(event).encode()
        thread = threading.Thread(target=self._send, args=(webhook, body), daemon=True, name="mixmon-webhook")
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def join(self) -> None:
        """Wait for the posts under way, a little longer than their time limit: at the end of a run."""
        for thread in self._threads:
            thread.join(1.5 * _TIMEOUT_S)

    def _send(self, webhook: Webhook, body: bytes) -> None:
        try:
            request = urllib.request.Request(webhook.url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                pass
        except Exception as error:  # whatever the server, the network or the URL is made of
            if not self._warned:
                self._warned = True
                log.warning("mixmon: the webhook to %s did not take the alarm: %s", webhook.host, error)
