"""A model's refs: every registered version, the challenger, the champion. Pure look-ups over the append-only history.

`models/<name>/versions`    entry n names the n-th registration and the registry's version number
`models/<name>/challenger`  the newest candidate
`models/<name>/champion`    what serves; moved by compare-and-set alone
`models/<name>/projected-*` the version that Headway last gave MLflow's alias of that name
"""

from __future__ import annotations

import re
from typing import Any

from data_contracts import refs
from data_contracts.documents import Link, Registration
from data_contracts.errors import ConfigError
from data_contracts.publication import Workspace
from data_contracts.refs import RefEntry


def versions_ref(model: str) -> str:
    return f"models/{model}/versions"


def alias_ref(model: str, alias: str) -> str:
    return f"models/{model}/{alias}"


def champion(workspace: Workspace, model: str) -> tuple[RefEntry, Registration] | None:
    entry = refs.current(workspace, alias_ref(model, "champion"))
    return None if entry is None else (entry, workspace.load(entry.target, Registration))


def version_of(workspace: Workspace, model: str, registration: Link) -> str | None:
    """The registry's version number of a registration, if it got that far."""
    detail = registration_detail(workspace, model, registration)
    return str(detail["version"]) if detail else None


def registration_detail(workspace: Workspace, model: str, registration: Link) -> dict[str, Any]:
    """What was written down beside the version: its number and, unless it is the default, the tracking URI."""
    for entry in reversed(refs.history(workspace, versions_ref(model))):
        if entry.target == registration:
            return entry.detail
    return {}


def was_champion(workspace: Workspace, model: str, registration: Link) -> bool:
    return any(entry.target == registration for entry in refs.history(workspace, alias_ref(model, "champion")))


MODEL_URI = re.compile(r"^models:/(?P<name>[^/@]+)(?:@(?P<alias>[a-z]+)|/(?P<version>\d+))$")


def resolve(workspace: Workspace, model_uri: str) -> tuple[str, str, Link]:
    """Name, version and registration of `models:/NAME@ALIAS` or `models:/NAME/VERSION`.

    Raises:
        ConfigError: not such a URI, or nothing of that name here.
    """
    match = MODEL_URI.match(model_uri)
    if match is None:
        raise ConfigError(
            f"{model_uri!r} is no model URI.", advice="Write models:/NAME@champion or models:/NAME/VERSION."
        )
    name, alias, version = match["name"], match["alias"], match["version"]
    entries = refs.history(workspace, versions_ref(name))
    if not entries:
        known = workspace.names("models") + workspace.names("refs/models")
        raise ConfigError(
            f"no model {name!r} in this workspace.",
            where=workspace.uri,
            advice=f"It has: {', '.join(sorted(set(known))) or 'none yet; run `headway retrain`'}.",
        )
    if alias is not None:
        entry = refs.current(workspace, alias_ref(name, alias))
        if entry is None:
            raise ConfigError(f"model {name!r} has no {alias}.", where=workspace.uri, advice="See `headway status`.")
        return name, str(entry.detail["version"]), entry.target
    for candidate in entries:
        if str(candidate.detail["version"]) == version:
            return name, version, candidate.target
    newest = entries[-1].detail["version"]
    raise ConfigError(f"model {name!r} has no version {version}.", advice=f"Its newest is {newest}.")
