"""Where the running Headway lies, and what is installed beside it."""

from __future__ import annotations

import functools
from pathlib import Path

HOME = Path(__file__).absolute().parents[3]
"""The folder, or archive, on the path that the package `headway` lies in.

In a checkout `headway/` holds links to the folders beside it. They are not followed here: a child process has to find
the package, not the folder.
"""


@functools.cache
def version(library: str) -> str:
    """The installed one's. All of its metadata is parsed for it, and a retrain asks some fifty times.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    from importlib import metadata

    return metadata.version(library)
