"""Prefect artifacts: what a person sees in the UI. They never fail a run.

Prefect is loaded where one is made: what is no flow run makes none.
"""

from __future__ import annotations

import contextvars
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from headway.data_contracts.store import plain_text
from headway.tasks.core.flow_run import current_flow_run

log = logging.getLogger(__name__)

CLOSE_WITHIN_S = 10.0
SAFE_IN_LINKS = "/:?#@!$&'*+,;=%~"
"""In a Markdown link of Prefect's; brackets and spaces would end it."""


def artifact_key(*words: str) -> str:
    """Prefect takes lower-case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _harmless(create: Callable[[], Any]) -> Any:
    if current_flow_run() is None:
        return None
    try:
        return create()
    except Exception as error:
        log.warning("An artifact could not be written: %s", error)
        return None


def _plain(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of a table, which Prefect shows as they are."""

    def shown(value: Any) -> Any:
        return plain_text.one_line(value, plain_text.MAX_FIELD_CHARS) if isinstance(value, str) else value

    return [{plain_text.one_line(name): shown(value) for name, value in row.items()} for row in rows]


def show_markdown(key: str, render: Callable[[], str], description: str) -> None:
    """
    Args:
        render: makes the page; what goes wrong in it fails no run either.
    """

    def create() -> object:
        from prefect.artifacts import create_markdown_artifact

        return create_markdown_artifact(key=key, markdown=render(), description=plain_text.markdown(description))

    _harmless(create)


def show_table(key: str, rows: Sequence[dict[str, Any]], description: str) -> None:
    def create() -> object:
        from prefect.artifacts import create_table_artifact

        return create_table_artifact(key=key, table=_plain(rows), description=plain_text.markdown(description))

    _harmless(create)


def show_link(key: str, link: str, text: str, description: str) -> None:
    def create() -> object:
        from prefect.artifacts import create_link_artifact

        return create_link_artifact(
            key=key,
            link=quote(link, safe=SAFE_IN_LINKS),
            link_text=plain_text.markdown(text),
            description=plain_text.markdown(description),
        )

    _harmless(create)


def _behind(last: threading.Thread | None, send: Callable[[], object]) -> threading.Thread:
    """A thread that sends something once the one before has: a server that is away holds up no training."""

    def in_turn() -> None:
        if last is not None:
            last.join()
        _harmless(send)

    # Prefect knows the flow run by its context.
    # A daemon: a server that never answers must not hold up the end of the process.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(in_turn,), daemon=True)
    thread.start()
    return thread


class GrowingTable:
    """A table artifact that is shown anew whenever it has grown, by a thread."""

    def __init__(self, key: str, description: str) -> None:
        self._key, self._description = key, plain_text.markdown(description)
        self._sending: threading.Thread | None = None

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        table = _plain(rows)

        def create() -> object:
            from prefect.artifacts import create_table_artifact

            return create_table_artifact(key=self._key, table=table, description=self._description)

        self._sending = _behind(self._sending, create)

    def close(self) -> None:
        """Give what was shown last some time to arrive."""
        if self._sending is not None:
            self._sending.join(CLOSE_WITHIN_S)


class ProgressBar:
    """A progress artifact, moved at most once a second, by a thread."""

    def __init__(self, key: str, description: str) -> None:
        def create() -> object:
            from prefect.artifacts import create_progress_artifact

            return create_progress_artifact(progress=0.0, key=key, description=plain_text.markdown(description))

        self._id = _harmless(create)
        self._moved_s = 0.0
        self._moving: threading.Thread | None = None

    def move(self, percent: float, now_s: float, description: str = "") -> None:
        """Args:
        description: takes the place of the one before; empty: that stays.
        """
        # While an update is on its way no other follows: of a server that is away they would pile up.
        is_early = now_s - self._moved_s < 1.0 or (self._moving is not None and self._moving.is_alive())
        if self._id is None or (is_early and percent < 100):
            return
        self._moved_s = now_s
        progress = round(min(percent, 100.0), 1)

        def update() -> object:
            from prefect.artifacts import update_progress_artifact

            shown = plain_text.markdown(description) or None
            return update_progress_artifact(artifact_id=self._id, progress=progress, description=shown)

        # The end is sent last.
        self._moving = _behind(self._moving, update)
