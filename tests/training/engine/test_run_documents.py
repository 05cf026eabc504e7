"""The gate: shards, receipt and run must name one another, and the receipt must have passed."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import ExpectationVerdict, Link
from headway.data_contracts.store.errors import ConfigError, ContractViolation, IntegrityError
from headway.training.config.order_spec import MixedDataset, OrderSpec
from headway.training.engine.run_documents import load_receipt, load_run_documents, require_passing_receipt
from tests.training.conftest import TINY

OTHER = Link(kind="snapshot", sha256="f" * 64)


def test_a_passing_receipt_of_these_shards_opens_the_gate(project):
    require_passing_receipt(project.publish_run(), project.manifest, project.receipt)


def test_a_failed_contract_is_named_by_its_rules(project):
    verdict = ExpectationVerdict(
        rule_id="text-not-empty", description="", severity="critical", passed=False, observed="3 rows"
    )
    failed = project.receipt.model_copy(update={"passed": False, "verdicts": (verdict,)})
    with pytest.raises(ContractViolation, match="broke their contract: text-not-empty"):
        require_passing_receipt(project.publish_run(), project.manifest, failed)


@pytest.mark.parametrize("source", ["run", "manifest", "receipt"])
def test_a_receipt_that_one_of_the_three_does_not_mean_keeps_it_shut(project, source):
    run, manifest, receipt = project.publish_run(), project.manifest, project.receipt
    foreign = Link(kind="receipt", sha256="e" * 64)
    if source == "run":
        run = run.model_copy(update={"receipt": foreign})
    elif source == "manifest":
        manifest = manifest.model_copy(update={"receipt": foreign})
    else:
        receipt = receipt.model_copy(update={"num_rows": 0})
    with pytest.raises(ContractViolation, match="do not name one another"):
        require_passing_receipt(run, manifest, receipt)


def test_a_receipt_about_another_snapshot_keeps_it_shut(project):
    receipt = project.receipt.model_copy(update={"snapshot": OTHER})
    run = project.publish_run(receipt=receipt.link)
    manifest = project.manifest.model_copy(update={"receipt": receipt.link})
    with pytest.raises(ContractViolation, match="receipt is about snapshot ffff"):
        require_passing_receipt(run, manifest, receipt)


def test_other_shards_than_the_runs_keep_it_shut(project):
    other = project.manifest.model_copy(update={"content_sha256": "0" * 64})
    with pytest.raises(ContractViolation, match="names other shards"):
        require_passing_receipt(project.publish_run(), other, project.receipt)


def test_another_fitted_state_than_the_shards_keeps_it_shut(project):
    run = project.publish_run(fitted=Link(kind="fitted", sha256="e" * 64))
    with pytest.raises(ContractViolation, match="another fitted state than its shards"):
        require_passing_receipt(run, project.manifest, project.receipt)


def mixing(project, shards):
    """A run that mixes in other shards than its own."""
    mix = (MixedDataset(manifest=project.workspace.publish_document(shards).sha256),)
    return project.publish_run(TINY.model_copy(update={"order": OrderSpec(mix=mix)})).link


def test_shards_that_are_mixed_in_pass_the_same_gate(own_project):
    project, receipt = own_project, own_project.receipt
    workspace, manifest = project.workspace, project.manifest
    assert load_run_documents(workspace, mixing(project, manifest)).mixed == (manifest,)
    for changes in ({"passed": False}, {"snapshot": OTHER}):
        evaluated = workspace.publish_document(receipt.model_copy(update=changes))
        with pytest.raises(ContractViolation, match="mixed in without a passing receipt about its data"):
            load_run_documents(workspace, mixing(project, manifest.model_copy(update={"receipt": evaluated})))
    unjudged = manifest.model_copy(update={"receipt": Link(kind="receipt", sha256="e" * 64)})
    with pytest.raises(ContractViolation, match="no readable contract receipt"):
        load_run_documents(workspace, mixing(project, unjudged))
    for changes in ({"fitted": Link(kind="fitted", sha256="e" * 64)}, {"columns": manifest.columns[:1]}):
        with pytest.raises(ConfigError, match="their columns or fitted states differ"):
            load_run_documents(workspace, mixing(project, manifest.model_copy(update=changes)))


def test_a_receipt_that_is_gone_is_a_contract_violation_not_a_technical_matter(project):
    with pytest.raises(ContractViolation, match="no readable contract receipt"):
        load_receipt(project.workspace, Link(kind="receipt", sha256="1" * 64))


def test_an_altered_receipt_is_refused(own_project):
    path = own_project.workspace.local_path(f"documents/receipt/{own_project.receipt.sha256}.json")
    path.write_bytes(path.read_bytes().replace(b'"num_rows":24', b'"num_rows":25'))
    with pytest.raises(ContractViolation, match="differ from the digest"):
        load_receipt(own_project.workspace, own_project.receipt.link)


def test_the_data_decide_vocabulary_and_context(project):
    shape = load_run_documents(project.workspace, project.publish_run().link).shape
    assert (shape.vocab_size, shape.context_tokens) == (300, 16)


def test_a_configuration_from_another_version_is_refused_by_its_field(project):
    run = project.publish_run(config={"max_step": 3})
    with pytest.raises(ConfigError, match=r"training\.max_step"):
        load_run_documents(project.workspace, run.link)


def test_a_run_that_was_never_published_is_named(project):
    with pytest.raises(IntegrityError, match="documents/run/2222"):
        load_run_documents(project.workspace, Link(kind="run", sha256="2" * 64))
