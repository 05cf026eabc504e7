"""Blocks of the README and of the documentation, for tests that what they show works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
PAGES = (HOME / "README.md", HOME / "SECURITY.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each block's language and text."""
    return BLOCK.findall(page.read_text())


def block(language: str, holding: str) -> str:
    """The one block in this language that holds these words, of the pages that people wrote."""
    written = (page for page in PAGES if page.parent.name != "reference" and page.is_relative_to(HOME / "docs"))
    texts = (text for page in written for name, text in blocks(page) if name == language)
    (found,) = (text for text in texts if holding in text)
    return found
