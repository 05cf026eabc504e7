"""Prefect artifacts: what a person sees in the UI. They never fail a run."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext

log = logging.getLogger(__name__)


def artifact_key(*words: str) -> str:
    """Prefect takes lower-case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _harmless(create: Callable[[], Any]) -> Any:
    if FlowRunContext.get() is None:
        return None
    try:
        return create()
    except Exception as error:
        log.warning("An artifact could not be written: %s", error)
        return None


def show_markdown(key: str, markdown: str, description: str) -> None:
    _harmless(lambda: create_markdown_artifact(key=key, markdown=markdown, description=description))


def show_table(key: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    _harmless(lambda: create_table_artifact(key=key, table=list(rows), description=description))


def show_link(key: str, link: str, text: str, description: str) -> None:
    _harmless(lambda: create_link_artifact(key=key, link=link, link_text=text, description=description))


class ProgressBar:
    """A progress artifact, moved at most once a second, by a thread: a server that is away holds up no training."""

    def __init__(self, key: str, description: str) -> None:
        self._id = _harmless(lambda: create_progress_artifact(progress=0.0, key=key, description=description))
        self._moved_s = 0.0
        self._moving: threading.Thread | None = None

    def move(self, percent: float, now_s: float) -> None:
        last = self._moving
        is_early = now_s - self._moved_s < 1.0 or (last is not None and last.is_alive())
        if self._id is None or (is_early and percent < 100):
            return
        self._moved_s = now_s

        def send() -> None:
            if last is not None:
                last.join()  # the end is told last
            _harmless(lambda: update_progress_artifact(artifact_id=self._id, progress=round(min(percent, 100.0), 1)))

        # Prefect knows the flow run by its context.
        self._moving = threading.Thread(target=contextvars.copy_context().run, args=(send,), daemon=True)
        self._moving.start()
