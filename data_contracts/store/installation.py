"""Where the running Headway lies."""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).absolute().parents[3]
"""The folder, or archive, on the path that the package `headway` lies in.

In a checkout `headway/` holds links to the folders beside it. They are not followed here: a child process has to find
the package, not the folder.
"""
