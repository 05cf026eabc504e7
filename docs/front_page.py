"""The parts of the README that pages of the site have, too: `python -m docs.front_page` writes them."""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
README = HOME / "README.md"
CONCEPTS = HOME / "docs" / "concepts"
FLOW = re.compile(r"^```\n snapshot .*?^```\n", re.MULTILINE | re.DOTALL)
PROMISES = re.compile(r"^\| promise \|.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def written() -> str:
    """The README with today's parts."""
    text = README.read_text()
    for part, new in ((FLOW, flow()), (PROMISES, promises())):
        # As it stands, whatever signs it holds.
        text = part.sub(lambda _, new=new: new, text)  # type: ignore[misc]
    return text


def flow() -> str:
    return _only(FLOW, CONCEPTS / "flow.md")


def promises() -> str:
    """Each in a line, without what the site says besides."""
    rows = [line.split(" | ") for line in _only(PROMISES, CONCEPTS / "promises.md").strip().splitlines()]
    body = (f"{promise} | {shown_by}" for promise, _, shown_by in rows[2:])
    return "\n".join(("| promise | shown by |", "|---|---|", *body))


def _only(part: re.Pattern[str], page: Path) -> str:
    (found,) = part.findall(page.read_text())
    return str(found)


if __name__ == "__main__":
    README.write_text(written())
