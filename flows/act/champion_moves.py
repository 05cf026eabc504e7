"""`headway promote` and `headway rollback`: the champion moved by a person, verified first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pydantic import BaseModel
from rich.table import Table

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.show.verify import proofs
from headway.tasks.core import identity
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.context import RunContext
from headway.tasks.registry import champion_moves, decisions, model_card, model_refs, retirement
from headway.tasks.registry.champion_moves import ChampionMove
from headway.tasks.registry.model_versions import model_versions
from headway.tasks.registry.promotion_decision import PromotionCheck
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.observe.ledger import Event

KEPT = "It is kept in the history."
MARKS = {"passed": "passed", "failed": "FAILED", "not evaluated": "not evaluated", "waiting": "waits"}


class MoveReport(BaseModel):
    """What a promotion or a rollback came to."""

    model: str
    from_version: str | None
    to_version: str
    why: str
    by: str
    when: str
    checks: list[PromotionCheck]
    """Of a promotion; a rollback asks no policy."""
    override: str
    """Why it was promoted although the policy refuses; empty where the policy had nothing against it."""
    card: str
    warnings: list[str]


def promote(
    workspace_uri: str, model: str, version: str, *, why: str, override: str = "", pipeline: str = ""
) -> MoveReport:
    """Verify a version, ask the policy, and make it champion.

    Args:
        override: promote whatever the policy says, and this is why.
        pipeline: whose policy; by default the one that the model was last evaluated by.

    Raises:
        ConfigError: no such version, or no reason.
        IntegrityError: a link of its proof is broken.
        PromotionRefused: the policy says no.
        RefConflict: somebody else moved the champion meanwhile.
        RegistryError: MLflow does not answer.
    """
    workspace = Workspace.existing(workspace_uri)
    _require_reason(why)
    if override and not override.strip():
        raise ConfigError("a promotion against the policy needs a reason.", where="--override", advice=KEPT)
    name, version, target = model_refs.resolve(workspace, f"models:/{model}/{version}")
    policy = _policy(workspace, name, pipeline)
    # Before the model's lock is taken: to hash it all takes long, and retrains wait for that lock.
    _require_proof(workspace, name, version)
    with (
        _at_work(workspace, name) as (context, warnings),
        model_versions(context, name, _store(workspace, name)) as made,
    ):
        moved = champion_moves.promote(
            made, target, why=why, by=identity.current_user(), policy=policy, override=override
        )
    return _report(workspace, name, moved, warnings)


class RefusalReport(BaseModel):
    """What a person said no to."""

    model: str
    version: str
    why: str
    by: str
    card: str


def refuse(workspace_uri: str, model: str, version: str, *, why: str) -> RefusalReport:
    """Write down that a version is not to become champion, whatever its figures say, until somebody promotes it.

    Raises:
        ConfigError: no such version, it is the champion, or no reason.
        RegistryError: MLflow does not answer.
    """
    workspace = Workspace.existing(workspace_uri)
    _require_reason(why)
    name, version, target = model_refs.resolve(workspace, f"models:/{model}/{version}")
    by, policy = identity.current_user(), decisions.last_policy(workspace, name)
    with (
        _at_work(workspace, name) as (context, _),
        model_versions(context, name, _store(workspace, name)) as made,
    ):
        champion_moves.refuse(made, target, why=why, by=by, policy=policy)
    card = workspace.uri_of(model_card.card_path(name, target))
    return RefusalReport(model=name, version=version, why=why, by=by, card=card)


def retire(workspace_uri: str, model: str, version: str, *, why: str) -> RefusalReport:
    """Say that a version is wanted no more, so that `headway clean` may let go of what it stands on.

    Raises:
        ConfigError: no such version, no reason, or it is the champion or the one before.
        RegistryError: MLflow does not answer.
    """
    workspace = Workspace.existing(workspace_uri)
    _require_reason(why)
    name, version, target = model_refs.resolve(workspace, f"models:/{model}/{version}")
    with (
        _at_work(workspace, name) as (context, _),
        model_versions(context, name, _store(workspace, name)) as made,
    ):
        entry = retirement.retire(made, target, why=why, by=identity.current_user())
        model_card.attach(made, target, version)
    card = workspace.uri_of(model_card.card_path(name, target))
    return RefusalReport(
        model=name, version=version, why=entry.reason, by=model_refs.retired_by(name, entry), card=card
    )


def rollback(workspace_uri: str, model: str, *, why: str, to: str = "") -> MoveReport:
    """Verify an earlier champion and bring it back.

    Args:
        to: its version; by default the champion before today's.

    Raises:
        ConfigError: no such version, it was never champion, there is none before today's, or no reason.
        IntegrityError: a link of its proof is broken.
        RefConflict: somebody else moved the champion meanwhile.
        RegistryError: MLflow does not answer.
    """
    workspace = Workspace.existing(workspace_uri)
    _require_reason(why)
    # The champion is read before the proof: should it move meanwhile, the compare-and-set refuses.
    now, target = champion_moves.rollback_target(workspace, model, to)
    version = model_refs.version_of(workspace, model, target) or to
    _require_proof(workspace, model, version)
    with (
        _at_work(workspace, model) as (context, warnings),
        model_versions(context, model, _store(workspace, model)) as made,
    ):
        moved = champion_moves.rollback(made, target, expected=now, why=why, by=identity.current_user())
    return _report(workspace, model, moved, warnings)


def _require_reason(why: str) -> None:
    if not why.strip():
        raise ConfigError("a decision about the champion needs a reason.", where="--why", advice=KEPT)


def _policy(workspace: Workspace, model: str, pipeline: str) -> PromotionSpec:
    if not pipeline:
        return decisions.last_policy(workspace, model)
    spec = pipeline_file(pipeline).spec
    if spec.registry.model != model:
        raise ConfigError(f"this pipeline makes {spec.registry.model!r}, not {model!r}.", where="--pipeline")
    return spec.promotion


def _require_proof(workspace: Workspace, model: str, version: str) -> None:
    """What `headway verify` says of the version, but for MLflow's aliases, which are about to be set."""
    uri = f"models:/{model}/{version}"
    broken = next((proof for proof in proofs(workspace, uri, aliases=False) if proof.status == "broken"), None)
    if broken is not None:
        raise IntegrityError(
            f"{uri} is not proved: {broken.what}: {broken.detail}. The champion stays what it is.",
            where=workspace.uri,
            advice="Put it back from a copy, or choose another version; `headway history` names those there were.",
        )


def _store(workspace: Workspace, model: str) -> str:
    """The MLflow store where the model was registered last."""
    newest = next(refs.newest_first(workspace, model_refs.versions_ref(model)), None)
    return "" if newest is None else model_refs.version_detail(model, newest).tracking_uri


@contextlib.contextmanager
def _at_work(workspace: Workspace, model: str) -> Iterator[tuple[RunContext, list[str]]]:
    """What a task needs, and the warnings that it gives."""
    warnings: list[str] = []

    def on_event(event: Event) -> None:
        if event["event"] == "alias.moved":
            warnings.append(str(event["message"]))

    with brief_context(model, workspace) as context:
        context.ledger.listeners.append(on_event)
        yield context, warnings


def _report(workspace: Workspace, model: str, moved: ChampionMove, warnings: list[str]) -> MoveReport:
    def number(link: Link | None) -> str | None:
        return None if link is None else model_refs.version_of(workspace, model, link)

    return MoveReport(
        model=model,
        from_version=number(moved.before),
        to_version=number(moved.entry.target) or "",
        why=moved.entry.reason,
        by=model_refs.champion_detail(model, moved.entry).by,
        when=moved.entry.moved_at,
        checks=[] if moved.decision is None else list(moved.decision.checks),
        override="" if moved.decision is None else moved.decision.override,
        card=workspace.uri_of(model_card.card_path(model, moved.entry.target)),
        warnings=warnings,
    )


def print_move(report: MoveReport) -> None:
    console = plain_console()
    console.print(headed(f"{report.model} version {report.to_version}", f": champion since {report.when}"))
    console.print(f"  instead of {'none' if report.from_version is None else f'version {report.from_version}'}")
    console.print(f"  why        {report.why}")
    if report.override:
        console.print(f"  override   {report.override}")
    if report.checks:
        print_table(console, _check_table(report.checks))
    console.print(f"  card       {report.card}")
    for warning in report.warnings:
        console.print(f"  warning    {warning}")


def print_refusal(report: RefusalReport, done: str = "refused") -> None:
    console = plain_console()
    console.print(headed(f"{report.model} version {report.version}", f": {done} by {report.by}"))
    console.print(f"  why        {report.why}")
    console.print(f"  card       {report.card}")


def _check_table(checks: list[PromotionCheck]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for check in checks:
        table.add_row(check.name, MARKS[check.status], check.detail)
    return table
