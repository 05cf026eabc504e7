"""A model's refs: every registered version, the challenger, the champion. Pure look-ups over the append-only history.

`models/<name>/versions`    entry n: a registration, the version number it has in a store, and which store that is
`models/<name>/challenger`  the newest candidate; it has the alias of that name while it is not the champion
`models/<name>/champion`    what serves; moved by compare-and-set alone
`models/<name>/retired`    versions that need no longer what they stand on
`models/<name>/projected-*` the version that Headway last gave a store's alias of that name

Refs name registrations. A version number belongs to a registration in one MLflow store; in another it has another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, Registration
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.registry.ref_details import AliasDetail, ChampionDetail, RetirementDetail, VersionDetail

ALIASES = ("champion", "challenger")
STORE = "tracking_uri"
"""In an entry's detail: the MLflow store that a version number belongs to; empty for the workspace's own."""


def versions_ref(model: str) -> str:
    return f"models/{model}/versions"


def cards_folder(model: str) -> str:
    """Of a model's versions each has a card there."""
    return f"cards/{model}"


def alias_ref(model: str, alias: str) -> str:
    return f"models/{model}/{alias}"


def is_challenger(newest: RefEntry | None, champion: RefEntry | None) -> bool:
    """Whether the newest candidate has the alias `challenger`: not while it is the champion, which is enough to say."""
    return newest is not None and (champion is None or champion.target != newest.target)


def alias_entry(workspace: Workspace, model: str, alias: str) -> RefEntry | None:
    """The newest move to the version that has an alias; None: no version has it."""
    entry = refs.current(workspace, alias_ref(model, alias))
    if alias != "challenger":
        return entry
    return entry if is_challenger(entry, refs.current(workspace, alias_ref(model, "champion"))) else None


def champion(workspace: Workspace, model: str) -> tuple[RefEntry, Registration] | None:
    entry = refs.current(workspace, alias_ref(model, "champion"))
    return None if entry is None else (entry, workspace.load(entry.target, Registration))


def versions(workspace: Workspace, model: str, *, store: str | None = None) -> list[RefEntry]:
    """What was registered, newest first; with `store`, in that one alone."""
    entries = reversed(refs.history(workspace, versions_ref(model)))
    return [entry for entry in entries if store is None or version_detail(model, entry).tracking_uri == store]


def version_of(workspace: Workspace, model: str, registration: Link, *, store: str | None = None) -> str | None:
    """The version number of a registration, in `store` or wherever it was registered last; None if nowhere."""
    return _number(model, versions(workspace, model, store=store), registration)


def last_entry(workspace: Workspace, model: str, registration: Link) -> RefEntry | None:
    """What was written down last of a registration: its number, and in which store."""
    return next((entry for entry in versions(workspace, model) if entry.target == registration), None)


def version_detail(model: str, entry: RefEntry) -> VersionDetail:
    """What an entry of `versions` says.

    Raises:
        IntegrityError: no number, or no store; as of the other readers here.
    """
    return refs.detail_of(versions_ref(model), entry, VersionDetail)


def champion_detail(model: str, entry: RefEntry) -> ChampionDetail:
    """What an entry of `champion` says."""
    return refs.detail_of(alias_ref(model, "champion"), entry, ChampionDetail)


def retired_by(model: str, entry: RefEntry) -> str:
    """Who retired a version."""
    return refs.detail_of(retired_ref(model), entry, RetirementDetail).by


def _number(model: str, entries: Iterable[RefEntry], registration: Link) -> str | None:
    return next((version_detail(model, entry).version for entry in entries if entry.target == registration), None)


def expected_version(workspace: Workspace, model: str, registration: Link | None, *, store: str) -> str:
    """The version number that a registration has in a store, or will have if nobody else registers first."""
    entries = versions(workspace, model, store=store)
    known = None if registration is None else _number(model, entries, registration)
    return known or str(max((int(version_detail(model, entry).version) for entry in entries), default=0) + 1)


def promotion_of(workspace: Workspace, model: str, registration: Link) -> RefEntry | None:
    """When a registration last became champion, and why; None if it never did."""
    moves = reversed(refs.history(workspace, alias_ref(model, "champion")))
    return next((entry for entry in moves if entry.target == registration), None)


def was_champion(workspace: Workspace, model: str, registration: Link) -> bool:
    return promotion_of(workspace, model, registration) is not None


def previous_champion(model: str, history: list[RefEntry]) -> Link | None:
    """The champion before today's: what was rolled back from is no way back."""
    stack: list[Link] = []
    for entry in history:
        if champion_detail(model, entry).how == "rollback" and entry.target in stack:
            # So that a second rollback goes further back, and not forth again.
            del stack[stack.index(entry.target) + 1 :]
        else:
            stack = [link for link in stack if link != entry.target] + [entry.target]
    return stack[-2] if len(stack) > 1 else None


def retired_ref(model: str) -> str:
    return f"models/{model}/retired"


def retirement_of(workspace: Workspace, model: str, registration: Link) -> RefEntry | None:
    """By whom, when and why a version was retired; None: it was not."""
    entries = refs.history(workspace, retired_ref(model))
    return next((entry for entry in entries if entry.target == registration), None)


def require_in_use(workspace: Workspace, model: str, version: str, registration: Link) -> None:
    """Raises `ConfigError`: it was retired, and what it stands on may be gone."""
    entry = retirement_of(workspace, model, registration)
    if entry is not None:
        by = retired_by(model, entry)
        raise ConfigError(
            f"version {version} of {model!r} was retired on {entry.moved_at} by {by}: {entry.reason}.",
            where=workspace.uri,
            advice="Choose another; `headway history` names the champions there were.",
        )


def require_model(workspace: Workspace, name: str) -> None:
    """Raises `ConfigError`: nothing was registered under this name, or not to its end; says what there is."""
    # A name with a slash is none, and would be a path.
    if "/" in name or refs.newest_number(workspace, versions_ref(name)) == 0:
        known = {*workspace.names("models"), *workspace.names("refs/models")}
        if name in known and not _had_version(workspace, name):
            raise ConfigError(
                f"the registration of model {name!r} was interrupted, or goes on: its files are here, and no version.",
                where=f"{workspace.uri}/models/{name}",
                advice="Give the command again, and it is finished; `headway status` shows the command of each run.",
            )
        if name in known:
            raise ConfigError(
                f"files of model {name!r} are here, and nothing names a version of it.",
                where=f"{workspace.uri}/refs/{versions_ref(name)}",
                advice="It had one: bring that folder back from a copy of the workspace.",
            )
        raise ConfigError(
            f"no model {name!r} in this workspace.",
            where=workspace.uri,
            advice=f"It has: {', '.join(sorted(known)) or 'none yet; run `headway retrain`'}.",
        )


def _had_version(workspace: Workspace, model: str) -> bool:
    """Whether what follows a version's first record was written: other refs, or a card."""
    return bool(workspace.names(f"refs/models/{model}") or workspace.names(cards_folder(model)))


MODEL_URI = re.compile(r"^models:/(?P<name>[^/@]+)(?:@(?P<alias>[a-z]+)|/(?P<version>\d+))$")


def resolve(workspace: Workspace, model_uri: str, *, to_start_from: bool = False) -> tuple[str, str, Link]:
    """Name, version and registration of `models:/NAME@ALIAS` or `models:/NAME/VERSION`.

    A number that means different registrations in different stores means the one that was registered last.

    Args:
        to_start_from: `@challenger` is the newest candidate, also if that is champion, so that no run loses its start.

    Raises:
        ConfigError: not such a URI, or nothing of that name here, or it was retired.
    """
    match = MODEL_URI.match(model_uri)
    if match is None:
        raise ConfigError(
            f"{model_uri!r} is no model URI.", advice="Write models:/NAME@champion or models:/NAME/VERSION."
        )
    name, alias, version = match["name"], match["alias"], match["version"]
    require_model(workspace, name)
    entries = versions(workspace, name)
    if alias is not None:
        move = refs.current(workspace, alias_ref(name, alias))
        entry = move if to_start_from else alias_entry(workspace, name, alias)
        if entry is None and move is not None:
            raise ConfigError(
                f"model {name!r} has no challenger: its newest version is the champion.",
                where=workspace.uri,
                advice=f"Write models:/{name}@champion.",
            )
        if entry is None:
            raise ConfigError(
                f"model {name!r} has no alias {alias!r}, or nothing bears it yet.",
                where=workspace.uri,
                advice="Headway sets `champion` and `challenger`; see `headway status`.",
            )
        number = (
            _number(name, entries, entry.target) or refs.detail_of(alias_ref(name, alias), entry, AliasDetail).version
        )
        require_in_use(workspace, name, number, entry.target)
        return name, number, entry.target
    for candidate in entries:
        if version_detail(name, candidate).version == version:
            require_in_use(workspace, name, version, candidate.target)
            return name, version, candidate.target
    last = version_detail(name, entries[0]).version
    raise ConfigError(f"model {name!r} has no version {version}.", advice=f"Its newest is {last}.")


def prove_histories(workspace: Workspace, model: str) -> int:
    """The number of moves of the model's refs, each after the one before, and each of what was registered.

    A move says which version it is to, and one of the champion what it is from: both have to be what the histories say.
    No version becomes champion that was registered without a move of the challenger.

    Raises:
        IntegrityError: a move is gone or damaged, or says other than the moves before it or the versions.
    """
    # Several for one registration: in each MLflow store it has a number of its own.
    numbers: dict[Link, set[str]] = {}
    entries = refs.history(workspace, versions_ref(model))
    num_moves = len(entries) + len(refs.history(workspace, retired_ref(model)))
    for entry in entries:
        numbers.setdefault(entry.target, set()).add(version_detail(model, entry).version)
    for alias in ALIASES:
        name, before = alias_ref(model, alias), None
        entries = refs.history(workspace, name)
        # While the newest candidate is champion, MLflow has no such alias either that would say it.
        if alias == "challenger" and not entries and refs.newest_number(workspace, alias_ref(model, "champion")) > 0:
            raise IntegrityError("is gone, though there is a champion.", where=f"refs/{name}", advice=refs.ADVICE)
        for entry in entries:
            where = refs.place_of(name, entry)
            move = champion_detail(model, entry) if alias == "champion" else refs.detail_of(name, entry, AliasDetail)
            if move.version not in numbers.get(entry.target, ()):
                message = f"says that its registration is version {move.version}, which the versions do not."
                raise IntegrityError(message, where=where, advice=refs.ADVICE)
            if isinstance(move, ChampionDetail) and move.before != before:
                raise IntegrityError("does not say what was champion before it.", where=where, advice=refs.ADVICE)
            before, num_moves = entry.target.sha256, num_moves + 1
    return num_moves
