"""What the site does otherwise than the pages on a git host: it refers to nothing outside itself."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
OF_SITE = (".md", ".svg", ".png")
FOREIGN_SCRIPT = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
"""By which Material's offline plugin makes the search work in pages opened from files."""
OWN_SCRIPT = "assets/file_worker.js"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to source files, which a git host shows, are their names here. MkDocs calls it for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        text, target = link[1], posixpath.normpath(posixpath.join(folder, link[2]))
        if "://" in link[2] or (target.endswith(OF_SITE) and not target.startswith("..")):
            return link[0]
        name = target.removeprefix("../")
        return text if text.strip("`") in name else f"{text} (`{name}`)"

    return LINK.sub(shown, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """A script of ours in place of the one from the network. MkDocs calls it for each page's HTML."""
    return _with_own_script(output, "../" * page.url.count("/"))


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Likewise for `404.html`, which is no page."""
    return _with_own_script(output_content, "") if template_name.endswith(".html") else output_content


def _with_own_script(html: str, above: str) -> str:
    return FOREIGN_SCRIPT.sub(f'<script src="{above}{OWN_SCRIPT}"></script>', html)
