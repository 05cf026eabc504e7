"""What champions and unfinished runs stand on is read again, in turn, and damage is told until it is mended."""

from __future__ import annotations

import random

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, Registration
from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.tasks.prove.prove import files_behind
from headway.tasks.prove.scrub import CHECKED, REPORT, ScrubReport, read_report, scrub
from headway.tasks.registry.file_lock import holding
from headway.tasks.registry.model_refs import alias_ref
from headway.training.checkpoint.layout import checkpoint_path, run_folder
from tests.tasks.past_work import Made, Maker


def flip_a_bit(workspace: Workspace, path: str) -> None:
    data = bytearray(workspace.read(path))
    place = random.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    workspace.publish(path, bytes(data))


def champion(maker: Maker, number: int, *, start: Made | None = None) -> tuple[Made, set[str]]:
    """A run whose model is registered and becomes champion, and the stored files that it stands on."""
    manifest = maker.data(number)
    made = maker.run(number, manifest, start=None if start is None else start.checkpoint)
    files = maker.register(made, maker.evaluate(made, manifest), number)
    registration = Link(kind=Registration.kind, sha256=files[0].rpartition("/")[2].removesuffix(".json"))
    name, detail = alias_ref("tiny", "champion"), {"version": str(number), "how": "policy"}
    before = refs.current(maker.workspace, name)
    refs.move(maker.workspace, name, registration, expected=before, reason="better", detail=detail)
    stored = {path for path in (*made.files, *files) if not path.startswith("documents/")}
    return made, {path for path in stored if not path.endswith("/result.json")}


def paths(report: ScrubReport) -> set[str]:
    return {each.path for each in report.damaged}


def test_all_that_a_version_stands_on_is_looked_at_and_nothing_else(workspace: Workspace) -> None:
    maker = Maker(workspace)
    first, stands_on = champion(maker, 1)
    _, of_second = champion(maker, 2, start=first)
    entry = refs.current(workspace, alias_ref("tiny", "champion"))
    assert entry is not None
    found = {file.path for file in files_behind(workspace, workspace.load(entry.target, Registration))}
    registered = {path for path in stands_on if path.startswith("models/")}
    assert found == of_second | (stands_on - registered)
    report = scrub(workspace)
    assert (report.num_files, report.num_checked, report.num_never_checked) == (len(found | registered),) * 2 + (0,)
    assert report.damaged == () and report.oldest_check_unix_s is not None


def test_a_flipped_bit_anywhere_is_named_with_who_needs_it_until_it_is_mended(workspace: Workspace) -> None:
    maker = Maker(workspace)
    _, earlier = champion(maker, 1)
    _, stored = champion(maker, 2)
    for path, needed_by in (
        *((path, "the champion of tiny") for path in sorted(stored)),
        *((path, "the champion of tiny before today's") for path in sorted(earlier - stored)),
    ):
        whole = workspace.read(path)
        flip_a_bit(workspace, path)
        (damaged,) = scrub(workspace).damaged
        assert (damaged.path, damaged.needed_by) == (path, needed_by)
        # The next look begins with it, whatever its bounds.
        assert paths(scrub(workspace, max_bytes=1)) == {path}
        workspace.publish(path, whole)
        assert scrub(workspace, max_bytes=1).damaged == ()
    assert read_report(workspace) is not None


def test_a_document_on_the_way_that_is_altered_or_gone_is_named(workspace: Workspace) -> None:
    made, _ = champion(Maker(workspace), 1)
    document = document_path(made.run)
    flip_a_bit(workspace, document)
    assert paths(scrub(workspace)) == {document}
    workspace.remove(document)
    assert paths(scrub(workspace)) == {document}


def test_looks_of_a_few_bytes_come_to_every_file_in_turn_and_begin_with_the_oldest(workspace: Workspace) -> None:
    _, stored = champion(Maker(workspace), 1)
    reports = [scrub(workspace, max_bytes=1) for _ in stored]
    assert [report.num_checked for report in reports] == [1] * len(stored)
    assert [report.num_never_checked for report in reports] == [*reversed(range(len(stored)))]
    assert reports[-2].oldest_check_unix_s is None
    oldest = [reports[-1].oldest_check_unix_s, *(scrub(workspace, max_bytes=1).oldest_check_unix_s for _ in stored)]
    assert None not in oldest and oldest == sorted(set(oldest)), "each look takes the one that waited longest"


def test_a_look_that_is_interrupted_counts_as_far_as_it_came(workspace: Workspace) -> None:
    _, stored = champion(Maker(workspace), 1)

    def interrupt(*_bytes: int) -> None:
        raise KeyboardInterrupt

    for _ in stored:
        with pytest.raises(KeyboardInterrupt):
            scrub(workspace, on_bytes=interrupt)
    assert scrub(workspace, max_bytes=1).num_never_checked == 0


def test_a_damaged_file_keeps_nobody_else_from_being_looked_at(workspace: Workspace) -> None:
    _, stored = champion(Maker(workspace), 1)
    two = set(sorted(stored)[:2])
    for path in two:
        flip_a_bit(workspace, path)
    left = [scrub(workspace, max_bytes=1).num_never_checked for _ in stored]
    assert left == [*reversed(range(len(stored)))]
    assert paths(scrub(workspace, max_bytes=1)) == two, "one that was not looked at again is still told"


def test_the_checkpoint_that_an_unfinished_run_would_go_on_from_is_looked_at(workspace: Workspace) -> None:
    maker = Maker(workspace)
    made = maker.run(7, maker.data(7), finished=False)
    assert scrub(workspace).damaged == ()
    newest, older = (f"{checkpoint_path(run_folder(made.run), step)}/tensors.safetensors" for step in (3, 2))
    flip_a_bit(workspace, older)
    assert scrub(workspace).damaged == (), "nobody goes on from it"
    flip_a_bit(workspace, newest)
    (damaged,) = scrub(workspace).damaged
    assert damaged.path == newest and damaged.needed_by.startswith(f"run {made.run.sha256[:16]}")
    maker.checkpoint(made.run, 4)
    assert scrub(workspace).damaged == (), "the run went on, and has a newer one"
    flip_a_bit(workspace, f"{checkpoint_path(run_folder(made.run), 4)}/manifest.json")
    assert paths(scrub(workspace)) == {checkpoint_path(run_folder(made.run), 4)}


def test_the_best_checkpoint_of_an_unfinished_run_is_looked_at_until_another_is(workspace: Workspace) -> None:
    maker = Maker(workspace)
    made = maker.run(7, maker.data(7), finished=False)
    maker.checkpoint(made.run, 4, best=2)
    best = f"{checkpoint_path(run_folder(made.run), 2)}/tensors.safetensors"
    flip_a_bit(workspace, best)
    assert paths(scrub(workspace)) == {best}
    maker.checkpoint(made.run, 5, best=5)
    assert scrub(workspace).damaged == (), "nobody needs it any more"


def test_a_record_of_looks_that_is_damaged_or_foretells_the_future_excuses_no_file(workspace: Workspace) -> None:
    _, stored = champion(Maker(workspace), 1)
    path = min(stored)
    scrub(workspace)
    for record in (b"{", b"[]", b'{"%s": 9e99}' % path.encode(), b'{"%s": "x"}' % path.encode()):
        workspace.publish(CHECKED, record)
        flip_a_bit(workspace, path)
        assert paths(scrub(workspace)) == {path}
        workspace.publish(REPORT, b"not a report")
        assert read_report(workspace) is None
        assert paths(scrub(workspace)) == {path}
        flip_a_bit(workspace, path)
        champion(Maker(workspace), 1)


def test_two_looks_at_once_are_refused(workspace: Workspace) -> None:
    with (
        holding(workspace.local_path("locks/scrub.lock")),
        pytest.raises(RegistryError, match="another flow has held this"),
    ):
        scrub(workspace)


@pytest.mark.process
def test_it_is_so_wherever_the_workspace_lies(anywhere: Workspace) -> None:
    _, stored = champion(Maker(anywhere), 1)
    assert scrub(anywhere).num_checked == len(stored)
    path = max(stored)
    flip_a_bit(anywhere, path)
    assert paths(scrub(anywhere)) == {path}


@pytest.mark.parametrize("at", ["-1", "-1e300", f"-{'9' * 400}", "1e300", "true", '"x"'])
def test_a_moment_that_no_look_can_have_had_is_none(workspace: Workspace, at: str) -> None:
    _, files = champion(Maker(workspace), 1)
    workspace.publish(CHECKED, f'{{"{min(files)}": {at}}}'.encode())
    assert scrub(workspace, max_bytes=1).num_never_checked == len(files) - 1
