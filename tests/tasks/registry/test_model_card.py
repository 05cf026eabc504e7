"""The card: one page for a version, with all it stands on, in the workspace and in MLflow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import (
    ContractReceipt,
    EvaluationReport,
    FreshnessObservation,
    Interval,
    Link,
    Registration,
    RunSpec,
)
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import champion, decisions, mlflow_store, model_facts, model_refs
from headway.tasks.registry.champion import decide_promotion
from headway.tasks.registry.model_card import MAX_DESCRIPTION, attach, card_path, render
from headway.tasks.registry.model_versions import ModelVersions, lineage
from headway.tasks.registry.promotion_decision import Decision
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.programs.export import write_graph

MODEL = "tiny"


@pytest.fixture
def workspace(workspace: Workspace, mlflow_tables: Path) -> Workspace:
    """One whose MLflow has its tables."""
    shutil.copy(mlflow_tables, workspace.local_path("mlflow.db"))
    return workspace


def settled(context: RunContext, pair: tuple[Link, Link], policy: PromotionSpec | None = None) -> ModelVersions:
    client = mlflow_store.connect(mlflow_store.default_tracking_uri(context.workspace))
    versions = ModelVersions(context, lambda: client, MODEL, "")
    champion.settle(versions, *pair, policy)
    return versions


def test_it_says_what_the_version_stands_on_and_is_on_the_version_in_mlflow(context: RunContext, register) -> None:
    one = register(1)
    versions = settled(context, one)
    workspace = context.workspace
    card = workspace.read(card_path(MODEL, one[0])).decode()
    for title in ("Decision", "Figures", "Data", "Training", "Became champion", "Limits", "Lineage"):
        assert f"\n## {title}\n" in card
    assert "# tiny version 1\n" in card and "**Promoted**" in card
    assert "first model, bits 1.5000 beats the bigram's 2.0000" in card
    assert "| bits | 1.5000 [1.4000, 1.6000] |" in card and "texts 1.0.0, passed" in card
    for what, digest in lineage(workspace, one[0]).items():
        assert f"| {what} | {digest.replace('@', '&#64;')} |" in card, "no address to write to"
    version = versions.client.get_model_version(MODEL, "1")
    assert len(card) <= MAX_DESCRIPTION
    assert version.description == card.removeprefix("# tiny version 1\n\n").replace("**", ""), "a title is there"
    assert version.description.startswith("Promoted, ")
    assert [file.path for file in versions.client.list_artifacts(version.run_id)] == ["model", "model_card.md"]


def test_it_needs_nothing_else_and_names_stay_text(workspace: Workspace, context: RunContext, register) -> None:
    registration, evaluation = register(1)
    report = workspace.load(evaluation, EvaluationReport).model_copy(update={"num_ranking_examples": 1})
    hostile = {"a|b <img src=x>\n## Fake": Interval(value=1.0, low=0.5, high=1.5)}
    forged = workspace.publish_document(report.model_copy(update={"slices": hostile, "slice_sizes": {}}))
    document = workspace.load(registration, Registration).model_copy(update={"evaluation": forged})
    card = render(workspace, MODEL, workspace.publish_document(document), "1")
    assert "- 1 further held-out example rank" in card and "judge nothing." in card
    assert "<img" not in card and "\n## Fake" not in card and "a\\|b" in card
    assert "](" not in card and "http" not in card


def test_a_newest_row_beyond_pythons_calendar_is_said_in_seconds(workspace: Workspace, context, register) -> None:
    document = workspace.load(register(1)[0], Registration)
    run = workspace.load(document.run, RunSpec)
    fresh = FreshnessObservation(
        rule_id="fresh", description="", severity="warning", unix_s=1e12, max_age_s=1.0, max_ahead_s=1.0
    )
    receipt = workspace.load(run.receipt, ContractReceipt).model_copy(update={"freshness": (fresh,)})
    later = run.model_copy(update={"receipt": workspace.publish_document(receipt)})
    document = document.model_copy(update={"run": workspace.publish_document(later)})
    card = render(workspace, MODEL, workspace.publish_document(document), "1")
    assert "| newest row, fresh | 1000000000000.0 s since 1970 UTC |" in card


def test_a_second_look_at_a_settled_version_writes_nothing(context: RunContext, register, monkeypatch) -> None:
    one = register(1)
    versions = settled(context, one)

    def never(*_arguments: object, **_named: object) -> None:
        raise AssertionError("written again")

    for name in ("log_text", "update_model_version", "set_registered_model_alias", "delete_registered_model_alias"):
        monkeypatch.setattr(versions.client, name, never)
    champion.settle(versions, *one)
    assert len(list(decisions.decisions(context.workspace, MODEL))) == 1


def test_of_two_that_write_a_card_at_once_the_later_one_does_not_undo_what_the_other_knew(
    context: RunContext, register, monkeypatch
) -> None:
    one = register(1)
    versions = settled(context, one)
    client, workspace = versions.client, context.workspace
    log_text, moves = client.log_text, []

    def move() -> None:
        entry = refs.current(workspace, model_refs.alias_ref(MODEL, "champion"))
        detail = {"version": "1", "how": "rollback", "by": "another host"}
        champion.set_champion(context, MODEL, one[0], expected=entry, why=f"move {len(moves)}", detail=detail)
        moves.append(entry)

    def slowly(run_id: str, text: str, file: str) -> None:
        """What was rendered is written after another writer moved on and wrote what it knows."""
        if len(moves) == 1:
            move()
            attach(versions, one[0], "1")
        log_text(run_id, text, file)

    move()
    monkeypatch.setattr(client, "log_text", slowly)
    attach(versions, one[0], "1")
    card = workspace.read(card_path(MODEL, one[0])).decode()
    assert "move 1" in card and card == render(workspace, MODEL, one[0], "1")
    assert client.get_model_version(MODEL, "1").description == card.partition("\n\n")[2].replace("**", "", 2)


def test_size_signature_and_example_are_read_from_the_registered_files(workspace: Workspace, register) -> None:
    registration, evaluation = register(1)
    policy = PromotionSpec(max_model_bytes=len(b"weights 1"))
    checks = {check.name: check for check in decide_promotion(workspace, policy, registration, evaluation, None).checks}
    assert [checks[name].status for name in ("size", "signature", "input example")] == ["passed"] * 3
    document = workspace.load(registration, Registration)
    kept = tuple(file for file in document.artifacts if not file.path.endswith("input_example.json"))
    bare = workspace.publish_document(document.model_copy(update={"artifacts": kept}))
    decision = decide_promotion(workspace, policy, bare, evaluation, None)
    assert [check.name for check in decision.failed] == ["input example"]


@pytest.mark.long
@pytest.mark.process
def test_the_registered_graph_is_timed_once_and_one_that_cannot_be_called_is_refused_with_the_reason(
    workspace: Workspace, register, tmp_path: Path, monkeypatch
) -> None:
    import torch

    def told(decision: Decision) -> str:
        return next(check.detail for check in decision.checks if check.name == "latency")

    registration, evaluation = register(1)
    document, policy = workspace.load(registration, Registration), PromotionSpec(max_latency_ms=1e6)
    refused = decide_promotion(workspace, policy, registration, evaluation, None)
    assert [check.name for check in refused.failed] == ["latency"]
    assert "not known (" in refused.reason and "the graph is refused" in refused.reason

    class Double(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return 2 * given

    write_graph(Double(), torch.ones(1, 1, dtype=torch.int64), tmp_path)
    graph = workspace.publish_file(tmp_path / "model.pt2", document.artifacts[1].path)
    made = document.model_copy(update={"artifacts": (document.artifacts[0], graph, document.artifacts[2])})
    registration = workspace.publish_document(made)
    timed = decide_promotion(workspace, policy, registration, evaluation, None)
    (latency,) = (check for check in timed.checks if check.name == "latency")
    assert latency.status == "passed" and latency.value is not None and 0 < latency.value < 1e6
    decisions.record(workspace, timed, version="1", by="a test")
    again = decide_promotion(workspace, policy, registration, evaluation, None)
    assert again == timed, "what was measured is remembered"
    monkeypatch.setattr(model_facts, "latency_of", lambda *_: 7.0)
    anew = decide_promotion(workspace, policy, registration, evaluation, None, measure=True)
    assert "latency 7 ms" in told(anew), "and is timed again where somebody asks for it"
    monkeypatch.setattr(model_facts, "machine_here", lambda: "another machine")
    monkeypatch.setattr(champion, "machine_here", model_facts.machine_here)
    elsewhere = decide_promotion(workspace, policy, registration, evaluation, None)
    assert "latency 7 ms" in told(elsewhere) and told(elsewhere).endswith("measured on another machine")

    monkeypatch.undo()
    unsigned = workspace.publish("models/tiny/unsigned/MLmodel", b"saved_input_example_info: {artifact_path: x.json}\n")
    example = workspace.publish("models/tiny/unsigned/x.json", b"[[1]]")
    registration = workspace.publish_document(made.model_copy(update={"artifacts": (unsigned, graph, example)}))
    refused = decide_promotion(workspace, policy, registration, evaluation, None)
    assert [check.name for check in refused.failed] == ["latency", "signature"]
    assert "its signature does not say of which type the input example is" in refused.reason


def test_data_whose_age_nobody_knows_are_not_fresh(workspace: Workspace, register) -> None:
    decision = decide_promotion(workspace, PromotionSpec(max_data_age_s=1e9), *register(1), None)
    assert [check.name for check in decision.failed] == ["freshness"]
    assert decision.reason == "freshness is limited and not known"
