"""Cleaning takes what nobody needs and nothing else, beside those at work and over interruptions, in any workspace."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from data_contracts import refs, stages
from data_contracts.digests import canonical_json, sha256_bytes, sha256_of
from data_contracts.documents import (
    CheckpointFile,
    CheckpointManifest,
    ContractReceipt,
    DeviceFingerprint,
    EvaluationReport,
    FittedState,
    Interval,
    Link,
    ProofBatch,
    Registration,
    RunSpec,
    Shard,
    ShardGroup,
    ShardManifest,
    Snapshot,
    StoredFile,
)
from data_contracts.errors import IntegrityError, RegistryError
from data_contracts.folder_store import Listed
from data_contracts.leftovers import MACHINE, claimed, staging_name
from data_contracts.publication import Workspace
from data_contracts.published_files import document_path
from tasks import clean, decisions, model_refs
from tasks.claim_records import OWNERS
from tasks.file_lock import holding
from tasks.promotion_decision import Check, Decision
from tasks.run_claims import claimed_run
from tasks.what_stays import DAY_S, REPRODUCTIONS, kind_of
from tests.tasks.conftest import make_context
from tests.training.attempts import begin
from tests.waiting import wait_until
from training.checkpoint.layout import RESULT_NAME, checkpoint_path, run_folder, stored_files
from training.launch import run_lock
from training.launch.mandate import Mandate
from training.launch.spec import LaunchSpec

LATER_S = 90 * DAY_S
"""By how much a test's cleaning comes after what it finds."""


@dataclass
class Made:
    """A run and all that it stands on."""

    run: Link
    checkpoint: Link
    files: list[str]
    """What its proof needs, documents included."""


class Maker:
    """Made-up pipelines' work, with every kind of file that a real one leaves, in few bytes."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def data(self, number: int) -> Link:
        """The manifest of a shard, and what it stands on."""
        w = self.workspace
        snapshot = w.publish_document(Snapshot(format="text-files", columns={}, num_rows=number, files=()))
        w.publish_json(f"places/{snapshot.sha256}.json", {"place": "/nowhere"})
        contract = w.publish_addressed(f"contracts/{sha256_bytes(b'rules %d' % number)}.yaml", b"rules %d" % number)
        receipt = ContractReceipt(
            contract=contract,
            contract_name="texts",
            contract_version="1.0.0",
            snapshot=snapshot,
            passed=True,
            num_rows=number,
            verdicts=(),
            num_quarantined=0,
            quarantine=None,
            metrics={},
        )
        w.publish_document(receipt)
        page = w.publish(f"reports/contract-{receipt.sha256[:16]}.html", b"page %d" % number)
        stages.record(w, "validate", {"data": number}, receipt.link, files=(contract, page))
        tokens = b"tokens %d" % number
        fitted = FittedState(
            encoder="byte-pair",
            spec={},
            snapshot=snapshot,
            receipt=receipt.link,
            files=(w.publish(f"fitted/{sha256_bytes(tokens)}/tokenizer.json", tokens),),
            libraries={},
        )
        w.publish_document(fitted)
        key = sha256_of(["group", number])
        rows = w.publish(f"shards/{key}/00000.parquet", b"rows %d" % number)
        w.publish_json(f"shards/{key}/group.json", {"record": {"key": key, "shard": rows.model_dump()}})
        group = ShardGroup(
            group=0,
            split="train",
            num_rows=1,
            num_samples=1,
            documents=(),
            shards=(Shard(file=rows, num_rows=1, row_groups=()),),
        )
        manifest = ShardManifest(
            snapshot=snapshot,
            receipt=receipt.link,
            fitted=fitted.link,
            spec={},
            columns=(),
            groups=(group,),
            content_sha256="0" * 64,
            libraries={},
        )
        w.publish_document(manifest)
        stages.record(w, "shard", {"data": number}, manifest.link, files=(rows,))
        return manifest.link

    def run(self, number: int, manifest: Link, *, start: Link | None = None, finished: bool = True) -> Made:
        """A run with three checkpoints, the last of which is its result."""
        w = self.workspace
        shards = w.load(manifest, ShardManifest)
        code, lock = b"code %d" % (number % 2), b"lock"
        run = RunSpec(
            pipeline=f"pipeline-{number % 2}",
            config={"seed": number},
            manifest=manifest,
            receipt=shards.receipt,
            fitted=shards.fitted,
            code=w.publish_addressed(f"code/{sha256_bytes(code)}.zip", code),
            environment=w.publish_addressed(f"environments/{sha256_bytes(lock)}.json", lock),
            start=start,
        )
        w.publish_document(run)
        folder = run_folder(run.link)
        w.publish(f"{folder}/attempts/001/ledger/rank-0.jsonl", b"{}\n")
        w.publish(f"{folder}/export/model.pt2", b"graph")
        for step in (1, 2, 3):
            manifest_at = self.checkpoint(run.link, step)
        if not finished:
            return Made(run.link, manifest_at.link, [])
        checkpoint = w.publish_document(manifest_at)
        ended = {"manifest_sha256": checkpoint.sha256, "step": 3}
        result = w.publish_json(f"{folder}/{RESULT_NAME}", ended)
        files = (*stored_files(checkpoint_path(folder, 3), manifest_at), result)
        stages.record(w, "launch", {"run": run.sha256}, run.link, files=files)
        receipt = w.load(run.receipt, ContractReceipt)
        links = (run.link, checkpoint, manifest, run.receipt, run.fitted, receipt.snapshot)
        fitted_files = w.load(run.fitted, FittedState).files
        rows = [shard.file for group in shards.groups for shard in group.shards]
        stored = (*files, run.code, run.environment, receipt.contract, *fitted_files, *rows)
        return Made(run.link, checkpoint, [*map(document_path, links), *(file.path for file in stored)])

    def checkpoint(self, run: Link, step: int) -> CheckpointManifest:
        weights = b"weights %d of %s" % (step, run.sha256.encode())
        file = CheckpointFile(name="tensors.safetensors", size_bytes=len(weights), blake3=blake3(weights).hexdigest())
        manifest = CheckpointManifest(
            run=run,
            step=step,
            num_samples=step,
            world_size=1,
            parent=None,
            files=(file,),
            layout=(),
            scalars={},
            proof=ProofBatch(file=file.name, loss_hex="0x0p+0"),
            fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
        )
        content = {"manifest.json": manifest.to_bytes(), "manifest.sha256": f"{manifest.sha256}\n".encode()}
        for name, data in {file.name: weights, **content}.items():
            self.workspace.publish(f"{checkpoint_path(run_folder(run), step)}/{name}", data)
        return manifest

    def evaluate(self, made: Made, manifest: Link) -> Link:
        figure = Interval(value=1.0, low=0.9, high=1.1)
        report = EvaluationReport(
            checkpoint=made.checkpoint,
            manifest=manifest,
            split="heldout",
            examples_sha256="0" * 64,
            num_examples=1,
            metric="bits",
            greater_is_better=False,
            metrics={"bits": figure},
            slices={},
            baselines={},
            gate_baseline="bigram",
            baseline_difference=figure,
            comparison=None,
        )
        self.workspace.publish_document(report)
        page = self.workspace.publish(f"reports/evaluation-{report.sha256[:16]}.html", b"page")
        stages.record(self.workspace, "evaluate", {"of": made.checkpoint.sha256}, report.link, files=(page,))
        return report.link

    def register(self, made: Made, evaluation: Link, version: int) -> list[str]:
        """What the version's proof needs besides the run's."""
        w, name = self.workspace, refs_of("tiny")
        model = w.publish(f"models/tiny/{made.checkpoint.sha256[:16]}/model.pt2", b"model %d" % version)
        registration = Registration(
            model="tiny", run=made.run, checkpoint=made.checkpoint, evaluation=evaluation, artifacts=(model,)
        )
        w.publish_document(registration)
        w.publish(f"cards/tiny/{registration.sha256[:16]}.md", b"card")
        entry = refs.current(w, name)
        refs.move(w, name, registration.link, expected=entry, reason="registered", detail={"version": str(version)})
        return [document_path(registration.link), document_path(evaluation), model.path]


def refs_of(model: str) -> str:
    return f"models/{model}/versions"


@pytest.fixture(params=["folder", "bucket"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    if request.param == "folder":
        return Workspace.create(str(tmp_path / "workspace"))
    return Workspace.create(f"s3://{request.getfixturevalue('new_bucket')()}/team")


def everything(workspace: Workspace) -> set[str]:
    tops = [*clean_kinds(), "refs"]
    return {file.path for top in tops for file in workspace.files(top)}


def clean_kinds() -> list[str]:
    from tasks.what_stays import KINDS

    return list(KINDS)


def look(workspace: Workspace, *, keep_last: int = 0, later_s: float = LATER_S) -> clean.Findings:
    return clean.look(workspace, older_than_s=30 * DAY_S, keep_last=keep_last, now_unix_s=time.time() + later_s)


def cleaned(workspace: Workspace, **how: float) -> set[str]:
    return {file.path for file in clean.sweep(workspace, look(workspace, **how), settle_s=0)}  # type: ignore[arg-type]


def dangling(workspace: Workspace) -> set[tuple[str, str]]:
    """Who names what is not there, read as strictly as a stage reads it."""
    here, found = everything(workspace), set()
    for path in here:
        named: list[str] = []
        if path.startswith(("documents/", "stages/")):
            named = [*names_in(json.loads(workspace.read(path)))]
        elif path.startswith("runs/") and path.endswith(("/manifest.json", f"/{RESULT_NAME}")):
            value = json.loads(workspace.read(path))
            folder = path.rpartition("/")[0]
            is_result = path.endswith(RESULT_NAME)
            named = [f"{folder}/checkpoints/step-{value['step']:08d}/manifest.json"] if is_result else []
            named += [f"{folder}/{file['name']}" for file in value.get("files", ())]
        found |= {(path, name) for name in named if name not in here}
    return found


def names_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if value.keys() == {"kind", "sha256"}:
            yield document_path(Link.model_validate(value))
        if value.keys() | {"sha256", "blake3"} == StoredFile.model_fields.keys():
            yield value["path"]
        for each in value.values():
            yield from names_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from names_in(each)


def history(workspace: Workspace, draw: random.Random, num_runs: int) -> dict[str, list[str]]:
    """A drawn past: runs on shared or own data, some from another's checkpoint, some registered. Needed, by version."""
    maker, needed, past = Maker(workspace), {}, []
    for number in range(num_runs):
        manifest = maker.data(draw.randrange(3))
        start = draw.choice([None, *past])
        made = maker.run(number, manifest, start=None if start is None else start.checkpoint)
        if start is not None:
            made.files += start.files
        past.append(made)
        if draw.random() < 0.7:
            evaluation = maker.evaluate(made, manifest)
            if draw.random() < 0.5:
                needed[str(number)] = made.files + maker.register(made, evaluation, number)
    maker.run(100, maker.data(0), finished=False)
    return needed


@pytest.mark.parametrize("seed", range(12))
def test_of_any_past_what_versions_need_stays_and_no_document_names_what_went(workspace: Workspace, seed: int) -> None:
    draw = random.Random(seed)
    needed = history(workspace, draw, draw.randrange(1, 7))
    before = everything(workspace)
    assert dangling(workspace) == set()
    found = look(workspace, keep_last=draw.randrange(2))
    gone = {file.path for file in clean.sweep(workspace, found, settle_s=0)}
    assert gone == {file.path for file in found.files} and gone
    assert everything(workspace) == before - gone
    for files in needed.values():
        assert not set(files) & gone
    assert dangling(workspace) == set()
    assert cleaned(workspace) <= before  # keep_last 0 may take more, and never what is needed
    assert all(set(files) <= everything(workspace) for files in needed.values())


def test_the_unregistered_goes_wherever_the_workspace_lies(anywhere: Workspace) -> None:
    maker = Maker(anywhere)
    first, second = maker.data(1), maker.data(2)
    kept, lost = maker.run(1, first), maker.run(2, second)
    needed = kept.files + maker.register(kept, maker.evaluate(kept, first), 1)
    maker.evaluate(lost, second)
    anywhere.publish(f"ledger/{'a' * 8}/flow.jsonl", b"{}\n")
    anywhere.publish("notes/mine.txt", b"nobody knows what for")
    gone = cleaned(anywhere)
    assert set(needed) <= everything(anywhere)
    shared = {path for path in lost.files if path in needed}
    assert set(lost.files) - shared <= gone
    assert f"ledger/{'a' * 8}/flow.jsonl" in gone
    assert f"{run_folder(kept.run)}/export/model.pt2" in gone
    assert f"{checkpoint_path(run_folder(kept.run), 2)}/manifest.json" in gone
    assert anywhere.exists("notes/mine.txt")
    assert dangling(anywhere) == set()
    validate, launch = (anywhere.names(f"stages/{stage}") for stage in ("validate", "launch"))
    assert len(validate) == len(launch) == 1  # of what stays, every stage is found again
    assert cleaned(anywhere) == set()


def test_what_is_young_or_among_the_last_finished_runs_stays(workspace: Workspace) -> None:
    maker = Maker(workspace)
    made = [maker.run(2 * number, maker.data(number)) for number in range(3)]
    for age, each in zip((50, 40, 20), made, strict=True):
        for path in [workspace.local_path(path) for path in each.files]:
            moment = time.time() - age * DAY_S
            os.utime(path, (moment, moment))
        for path in workspace.local_path(run_folder(each.run)).rglob("*"):
            os.utime(path, (moment, moment))
    for path in workspace.local_path("stages").rglob("*.json"):
        os.utime(path, (0, 0))
    gone = cleaned(workspace, keep_last=1, later_s=0)
    assert set(made[2].files) <= everything(workspace)
    assert document_path(made[0].run) in gone and document_path(made[1].run) in gone
    gone = cleaned(workspace, keep_last=1, later_s=LATER_S)
    assert set(made[2].files) <= everything(workspace) and f"{run_folder(made[2].run)}/export/model.pt2" not in gone


def test_a_run_that_goes_on_stays_however_old_it_is_and_an_abandoned_one_goes(workspace: Workspace) -> None:
    maker = Maker(workspace)
    alive, abandoned = (maker.run(number, maker.data(number), finished=False) for number in (1, 2))
    with run_lock.owning(workspace.local_path(run_folder(alive.run))):
        cleaned(workspace)
    assert workspace.names(f"{run_folder(alive.run)}/checkpoints") != []
    assert workspace.exists(document_path(alive.run))
    assert dangling(workspace) == set()
    assert not workspace.local_path(run_folder(abandoned.run)).exists()
    assert not workspace.exists(document_path(abandoned.run))


def test_the_claims_of_a_run_that_another_machine_has_stay_with_all_of_it_and_go_when_it_is_over(
    new_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Workspace.create(f"s3://{new_bucket()}/team")
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "this machine"))
    here = Workspace(there.uri)
    maker = Maker(here)
    data = maker.data(1)
    made = maker.run(1, data)
    needed = made.files + maker.register(made, maker.evaluate(made, data), 1)
    claims = f"{OWNERS}/{made.run.sha256[:16]}"
    with claimed_run(make_context(there, tmp_path / "flow"), made.run, LaunchSpec()) as claim:
        wait_until(lambda: "00000001.beat" in here.names(claims))
        assert not {path for path in cleaned(here) if path.startswith((run_folder(made.run), OWNERS))}
        claim.require()
    assert {f"{claims}/00000001.{name}" for name in ("json", "beat", "over")} <= cleaned(here)
    assert set(needed) <= everything(here)


def test_a_run_that_goes_on_again_while_its_old_files_go_keeps_its_mandate(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(workspace)
    made = maker.run(1, maker.data(1), finished=False)
    folder, real = workspace.local_path(run_folder(made.run)), clean._remove_empty_folders
    begun: list[Mandate] = []

    def remove_of_a_run_resumed(root: Path, gone: list[Listed]) -> None:
        assert any(file.path.startswith(f"{run_folder(made.run)}/") for file in gone)
        with run_lock.owning(folder):
            begun.append(begin(folder, 2))
            real(root, gone)

    monkeypatch.setattr(clean, "_remove_empty_folders", remove_of_a_run_resumed)
    cleaned(workspace)
    begun[0].require()


def test_what_a_flow_at_work_could_have_found_stays(workspace: Workspace) -> None:
    made = Maker(workspace).run(1, Maker(workspace).data(1))
    session = workspace.local_path(f"sessions/{MACHINE}-1")
    session.parent.mkdir()
    with claimed(session):
        os.utime(session, (0, 0))
        assert cleaned(workspace) == set()
    assert set(made.files) <= cleaned(workspace)


@pytest.mark.parametrize("kind", ["stage", "group", "document"])
def test_what_a_flow_finds_again_between_two_looks_stays_with_all_that_it_names(
    workspace: Workspace, kind: str
) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    key = sha256_of(["group", 1])
    found = clean.look(workspace, older_than_s=DAY_S, keep_last=0, now_unix_s=time.time() + 2 * DAY_S)
    paths = {
        "stage": stages.record_path("shard", stages.stage_key("shard", {"data": 1})),
        "group": f"shards/{key}/group.json",
        "document": document_path(manifest),
    }
    assert paths[kind] in found.survey.order
    for path in workspace.local_root.rglob("*"):
        os.utime(path, (0, 0))
    if kind == "document":
        assert workspace.publish_document(workspace.load(manifest, ShardManifest)) == manifest
    else:
        assert workspace.renew(paths[kind])
    later = workspace.local_path(paths[kind]).stat().st_mtime
    assert later > 0
    future = later + 3 * DAY_S
    os.utime(workspace.local_path(paths[kind]), (future, future))  # the cleaning's clock is ahead by two days
    clean.sweep(workspace, found, settle_s=0)
    assert workspace.exists(f"shards/{key}/00000.parquet")
    assert workspace.exists(paths[kind])
    assert {name for who, name in dangling(workspace) if who == paths[kind]} == set()


def test_an_interrupted_cleaning_leaves_no_name_of_what_is_gone_and_the_next_completes_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    kept, lost = maker.run(1, manifest), maker.run(2, maker.data(2), start=None)
    maker.register(kept, maker.evaluate(kept, manifest), 1)
    maker.evaluate(lost, maker.data(2))
    total = len(look(workspace).files)
    removed = 0
    remove = Workspace.remove

    def one_then_killed(self: Workspace, relative: str) -> None:
        nonlocal removed
        removed += 1
        if removed % 4 == 0:
            raise KeyboardInterrupt
        remove(self, relative)

    monkeypatch.setattr(Workspace, "remove", one_then_killed)
    for _ in range(2 * total):
        with contextlib.suppress(KeyboardInterrupt):
            if not cleaned(workspace):
                break
        assert dangling(workspace) == set()
    monkeypatch.undo()
    assert cleaned(workspace) == set() and look(workspace).files == []


@pytest.mark.parametrize("damage", ["altered", "gone", "ref"])
def test_nothing_goes_while_what_a_version_needs_cannot_be_known(workspace: Workspace, damage: str) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    made = maker.run(1, manifest)
    (registration, *_) = maker.register(made, maker.evaluate(made, manifest), 1)
    entry = f"refs/{refs_of('tiny')}/00000001.json"
    path = workspace.local_path(entry if damage == "ref" else registration)
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data.replace(b"tiny", b"tinz").replace(b"registered", b"x"))
    with pytest.raises(IntegrityError, match="Nothing was deleted"):
        look(workspace)
    path.write_bytes(data)
    assert look(workspace).files


def test_a_pipeline_that_went_on_after_a_damaged_entry_can_be_cleaned(workspace: Workspace) -> None:
    fitted = Maker(workspace).data(1)
    for _ in range(2):
        refs.move(workspace, "fitted/tiny", fitted, expected=refs.current(workspace, "fitted/tiny"), reason="fit")
    workspace.local_path("refs/fitted/tiny/00000001.json").write_bytes(b"{")
    assert document_path(fitted) in look(workspace).survey.why


def test_unfinished_files_go_unless_somebody_writes_them(workspace: Workspace) -> None:
    Maker(workspace).data(1)
    key = sha256_of(["group", 1])
    dead, alive = (workspace.local_path(f"shards/{key}/{staging_name('00001.parquet')}") for _ in range(2))
    dead.write_bytes(b"half")
    with claimed(alive):
        cleaned(workspace)
        assert alive.exists() and not dead.exists()


def test_copies_on_this_machine_go_when_nobody_used_them_and_so_does_finished_work_for_a_bucket(
    anywhere: Workspace,
) -> None:
    anywhere.publish("notes/mine.txt", b"")
    note, data, old = (anywhere.local_path(f"{name}") for name in ("tables/x.json", "tables/x.data", "copies/y.json"))
    for path in (note, data, old):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(canonical_json({}))
    work = anywhere.local_path("runs/0123456789abcdef/attempts/log")
    work.parent.mkdir(parents=True)
    work.write_bytes(b"")
    future = time.time() + LATER_S
    os.utime(data, (future, future))
    cleaned(anywhere)
    assert note.exists() and data.exists() and not old.exists() and not work.exists()


def retired(workspace: Workspace, made: Made, evaluation: Link) -> tuple[Link, Link]:
    """Registration and decision of a version that is given up."""
    names = workspace.names(f"documents/{Registration.kind}")
    links = [Link(kind=Registration.kind, sha256=name.removesuffix(".json")) for name in names]
    (registration,) = (link for link in links if workspace.load(link, Registration).checkpoint == made.checkpoint)
    decision = Decision(
        model="tiny",
        registration=registration,
        evaluation=evaluation,
        champion=None,
        policy={},
        checks=(Check(name="baseline", standing="failed", detail="worse"),),
    )
    decisions.record(workspace, decision, version="1", by="a test")
    refs.move(workspace, model_refs.retired_ref("tiny"), registration, expected=None, reason="old", detail={"by": "a"})
    return registration, decision.link


@pytest.mark.parametrize("shares_data", [True, False])
def test_what_a_retired_version_alone_stands_on_goes_and_its_history_stays(anywhere: Workspace, shares_data) -> None:
    maker = Maker(anywhere)
    first = maker.data(1)
    data = [first, first if shares_data else maker.data(2)]
    made = [maker.run(number, data[number]) for number in (0, 1)]
    reports = [maker.evaluate(made[number], data[number]) for number in (0, 1)]
    needed = [maker.register(made[number], reports[number], number + 1) for number in (0, 1)]
    registration, decision = retired(anywhere, made[0], reports[0])
    gone = cleaned(anywhere)
    still = {*made[1].files, *needed[1]}
    assert still <= everything(anywhere), "the other version is whole"
    assert gone >= {*made[0].files, *needed[0]} - still - {document_path(registration)}
    assert f"cards/tiny/{registration.sha256[:16]}.md" in everything(anywhere)
    assert document_path(registration) in everything(anywhere) and document_path(decision) in everything(anywhere)
    assert {who for who, _ in dangling(anywhere)} == {document_path(registration), document_path(decision)}
    assert [entry.number for entry in refs.history(anywhere, refs_of("tiny"))] == [1, 2]
    assert cleaned(anywhere) == set(), "and a second cleaning finds no fault with that"


@pytest.mark.parametrize("later", [(), ("other",)])
def test_a_champion_and_the_one_before_stay_whole_even_if_somebody_retired_them_at_that_moment(
    workspace: Workspace, later: tuple[str, ...]
) -> None:
    maker = Maker(workspace)
    data = maker.data(1)
    made = [maker.run(number, data) for number in (0, 1)]
    reports = [maker.evaluate(each, data) for each in made]
    needed = [maker.register(made[number], reports[number], number + 1) for number in (0, 1)]
    registration, _ = retired(workspace, made[0], reports[0])
    other = Link(kind=Registration.kind, sha256=needed[1][0].rpartition("/")[2].removesuffix(".json"))
    for link in (registration, *(other for _ in later)):
        name = model_refs.alias_ref("tiny", "champion")
        refs.move(workspace, name, link, expected=refs.current(workspace, name), reason="", detail={"version": "1"})
    cleaned(workspace)
    assert {*made[0].files, *needed[0]} <= everything(workspace) and dangling(workspace) == set()


def test_two_cleanings_do_not_run_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "OTHER_CLEANING_WITHIN_S", 0.1)
    Maker(workspace).data(1)
    with holding(workspace.local_path("locks/clean.lock")), pytest.raises(RegistryError):
        cleaned(workspace)


def test_a_version_trained_again_goes_when_it_is_old_unless_it_is_at_it(anywhere: Workspace) -> None:
    anywhere.publish("notes/mine.txt", b"")
    trials = [anywhere.local_path(f"{REPRODUCTIONS}/{digit * 16}") for digit in "123"]
    for trial in trials:
        (trial / "checkpoints").mkdir(parents=True)
        (trial / "checkpoints" / "tensors").write_bytes(b"")
    old, young, alive = trials
    future = time.time() + LATER_S
    os.utime(young / "checkpoints" / "tensors", (future, future))
    with run_lock.owning(alive):
        found = {file.path for file in look(anywhere).here}
        assert {kind_of(path) for path in found} == {REPRODUCTIONS}
        cleaned(anywhere)
    assert not old.exists() and young.exists() and (alive / "checkpoints" / "tensors").exists()
