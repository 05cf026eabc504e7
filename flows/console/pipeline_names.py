"""What a project's pipeline files are called, for commands, deployments and shells that complete names."""

from __future__ import annotations

import re
from pathlib import Path

NO_PIPELINES = ("prefect.yaml", "profiles.yaml")
"""In `deployments/`, beside the pipeline files."""
_PLAIN = re.compile(r"\w[\w.@%+,-]*")
"""What no shell takes for anything but a word."""
OF_A_CONTRACT, OF_A_PIPELINE = ".contract.yaml", ".pipeline.yaml"
"""As `headway contract init` calls what it drafts, which may lie there as it is."""


def pipeline_files(folder: Path) -> list[Path]:
    """Those of a project, by name."""
    found = sorted((folder / "deployments").glob("*.yaml"))
    return [path for path in found if path.name not in NO_PIPELINES and not path.name.endswith(OF_A_CONTRACT)]


def pipeline_name(path: Path) -> str:
    """By which people and deployments call a file of `deployments/`."""
    return path.name.removesuffix(OF_A_PIPELINE).removesuffix(".yaml")


def completed(typed: str) -> list[str]:
    """For a shell: names of drafts and of pipelines here. It completes paths by itself.

    In a folder that somebody else wrote a name may be a command: bash types it as it is, and zsh evaluates it.
    """
    found = [*Path().glob(f"*{OF_A_PIPELINE}"), *pipeline_files(Path())]
    return sorted({name for name in map(pipeline_name, found) if name.startswith(typed) and _PLAIN.fullmatch(name)})
