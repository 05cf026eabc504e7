"""The champion moved by a person: promoted if the policy allows it, or back to what it was before.

Whoever calls has verified the target. Each move is one entry of the champion's ref, made against the entry that was
seen: of two that saw the same, one is refused and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError, PromotionRefused
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.registry import decisions, model_card, model_refs
from headway.tasks.registry.champion import decide_promotion, move_alias, set_champion
from headway.tasks.registry.mlflow_aliases import sync_mlflow_aliases
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.promotion_decision import Decision
from headway.tasks.registry.promotion_spec import PromotionSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ChampionMove:
    """A move that was made."""

    entry: RefEntry
    before: Link | None
    decision: Decision | None = None


def promote(
    versions: ModelVersions, target: Link, *, why: str, by: str, policy: PromotionSpec, override: str = ""
) -> ChampionMove:
    """Make a registered model champion, if the policy says so, or against it with a reason.

    Raises:
        ConfigError: it is the champion, or was retired.
        PromotionRefused: the policy says no; every failed check is named, and the card says so too.
        RefConflict: another writer was first.
    """
    workspace, model = versions.context.workspace, versions.model
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    version = versions.ensure(target)
    if now is not None and now.target == target:
        # Asked again, perhaps because MLflow did not answer after the champion had moved.
        _follow(versions, target)
        raise ConfigError(f"version {version} is the champion of {model!r} already.", where=workspace.uri)
    # Asked here too: it may have been retired while it was verified.
    model_refs.require_in_use(workspace, model, version, target)
    evaluation = decisions.newest_evaluation(workspace, target, None if now is None else now.target)
    decision = decide_promotion(
        workspace, policy, target, evaluation, now, measure=True, approved=f"approved by {by}: {why}"
    )
    refusal = decision.reason
    if not decision.promote and override:
        decision = decision.model_copy(update={"override": override})
    elif not decision.promote and decisions.current_refusal(workspace, model, target):
        # What a person refused is taken back by a promotion, and there is none: it goes on standing beside the checks.
        decision = decide_promotion(workspace, policy, target, evaluation, now)
    # A refusal and an override are decisions too: both stand in the history.
    kept = decisions.record(workspace, decision, version=version, by=by)
    if not decision.promote and not override:
        model_card.attach(versions, target, version)
        raise PromotionRefused(
            f"the policy refuses version {version} of {model!r}: {refusal}.",
            where=workspace.uri,
            advice=f"{decision.remedy} Or say with --override why it shall be so all the same.",
        )
    if refs.newest_number(workspace, model_refs.alias_ref(model, "challenger")) == 0:
        # A retrain was killed right after it registered the first version, and no champion is without that move.
        move_alias(
            versions.context, model, "challenger", target, reason="newest candidate", detail={"version": version}
        )
    detail = {"version": version, "how": "promote", "by": by, "decision": kept.sha256}
    entry = set_champion(versions.context, model, target, expected=now, why=why, detail=detail)
    _follow(versions, target)
    return ChampionMove(entry=entry, before=None if now is None else now.target, decision=decision)


def refuse(versions: ModelVersions, target: Link, *, why: str, by: str, policy: PromotionSpec) -> Decision:
    """Write down that a person does not want a version for champion: no retrain promotes it until one approves of it.

    Raises:
        ConfigError: it is the champion.
    """
    workspace, model = versions.context.workspace, versions.model
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    version = versions.ensure(target)
    if now is not None and now.target == target:
        raise ConfigError(
            f"version {version} is the champion of {model!r}.",
            where=workspace.uri,
            advice="`headway rollback` moves it.",
        )
    evaluation = decisions.newest_evaluation(workspace, target, None if now is None else now.target)
    decision = decide_promotion(workspace, policy, target, evaluation, now, refused=f"refused by {by}: {why}")
    decisions.record(workspace, decision, version=version, by=by)
    model_card.attach(versions, target, version)
    sync_mlflow_aliases(versions)
    return decision


def rollback(versions: ModelVersions, target: Link, *, expected: RefEntry, why: str, by: str) -> ChampionMove:
    """Bring an earlier champion back.

    Raises:
        ConfigError: it was retired.
        RefConflict: the champion is not `expected` any more; nothing was changed.
    """
    version = versions.ensure(target)
    # Asked here too: it may have been retired while it was verified.
    model_refs.require_in_use(versions.context.workspace, versions.model, version, target)
    detail = {"version": version, "how": "rollback", "by": by}
    entry = set_champion(versions.context, versions.model, target, expected=expected, why=why, detail=detail)
    _follow(versions, target)
    return ChampionMove(entry=entry, before=expected.target)


def _follow(versions: ModelVersions, target: Link) -> None:
    """MLflow after the refs: asked for by a person, the aliases are set whoever moved them."""
    model_card.attach(versions, target, versions.ensure(target))
    sync_mlflow_aliases(versions, take_over=True)


def _no_way_back(workspace: Workspace, model: str, history: list[RefEntry]) -> ConfigError:
    """With the champions that were rolled back from: the newest is most likely what is looked for."""
    now = history[-1].target
    later = {entry.target: model_refs.champion_detail(model, entry).version for entry in history if entry.target != now}
    if not later:
        what, advice = "today's is its first.", "`headway promote MODEL VERSION` makes another version champion."
    else:
        names, newest = ", ".join(later.values()), list(later.values())[-1]
        what = f"{'version' if len(later) == 1 else 'versions'} {names} came later, and was rolled back from."
        advice = f"`headway promote {model} {newest} --why WHY` makes version {newest} champion again."
    return ConfigError(
        f"model {model!r} has no champion before today's: {what}",
        where=workspace.uri,
        advice=f"{advice} `headway history` has all of them.",
    )


def rollback_target(workspace: Workspace, model: str, version: str = "") -> tuple[RefEntry, Link]:
    """Today's champion, and the one to go back to.

    Args:
        version: of an earlier champion; empty for the one before today's.

    Raises:
        ConfigError: there is none, or it was never champion.
    """
    model_refs.require_model(workspace, model)
    history = refs.history(workspace, model_refs.alias_ref(model, "champion"))
    if not history:
        raise ConfigError(f"model {model!r} has no champion.", where=workspace.uri, advice="See `headway status`.")
    now = history[-1]
    if version:
        _, _, target = model_refs.resolve(workspace, f"models:/{model}/{version}")
        if target == now.target:
            raise ConfigError(f"version {version} is the champion of {model!r} already.", where=workspace.uri)
        if target not in {entry.target for entry in history}:
            raise ConfigError(
                f"version {version} of {model!r} was never champion.",
                where=workspace.uri,
                advice="`headway promote` asks the policy; `headway history` names the champions there were.",
            )
        return now, target
    before = model_refs.previous_champion(model, history)
    if before is None:
        raise _no_way_back(workspace, model, history)
    return now, before
