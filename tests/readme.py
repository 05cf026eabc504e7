"""The README's blocks, for tests that what it shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def block(language: str, holding: str) -> str:
    """The one block in this language that holds these words."""
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if holding in text)
    return str(found)
