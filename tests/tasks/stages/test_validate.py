"""The gate: a receipt is found again, the clock is asked each time, and acceptance decides what comes next."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.report.validation_report import without_links
from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import ContractReceipt, Link
from headway.data_contracts.store.errors import ConfigError, ContractViolation
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites import contract_file
from headway.data_contracts.suites.contract_file import using_contract_files
from headway.data_contracts.tables.source_spec import CsvOptions, SourceSpec
from headway.tasks.core.context import RunContext
from headway.tasks.core.pages import contract_page
from headway.tasks.rows.acceptance import accepted_ref, baseline_of
from headway.tasks.rows.source_rows import source_rows
from headway.tasks.stages import validate as gate
from headway.tasks.stages.snapshot import take
from headway.training.config.shards import ShardSpec
from headway.training.observe.ledger import read_events

CONTRACT = """
name: events
version: 1.0.0
columns:
  id: {type: int64, max: 1000000}
  at: {type: 'timestamp[us]'}
volume: {min_ratio: 0.5, max_ratio: 2}
freshness:
  - {id: fresh, column: at, max_age_h: 24}
"""
NOW_S = 1_800_000_000.0
SOURCE = SourceSpec(uri="data", format="parquet")
Validate = Callable[[], Link]


def write(
    context: RunContext, num_rows: int, *, age_s: float = 3600, name: str = "part.parquet", start: int = 0
) -> None:
    folder = context.base / "data"
    folder.mkdir(exist_ok=True)
    times = pa.array([int((NOW_S - age_s) * 1e6)] * num_rows, pa.timestamp("us"))
    pq.write_table(pa.table({"id": list(range(start, start + num_rows)), "at": times}), folder / name)
    os.utime(folder / name, (0, num_rows))


def say(context: RunContext, text: str) -> None:
    (context.base / "events.yaml").write_text(text)


@pytest.fixture
def validate(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> Validate:
    """Validate the data as they lie now, at NOW_S by the gate's clock."""
    monkeypatch.setattr(gate.time, "time", lambda: NOW_S)
    say(context, CONTRACT)

    def run() -> Link:
        snapshot = take_snapshot(SOURCE, base=context.base, cache=context.digests)
        link = context.workspace.publish_document(snapshot)
        return gate.validate.fn(context, "events.yaml", SOURCE, link, ShardSpec())

    return run


def evaluated(context: RunContext) -> Link:
    """The snapshot of the data as they lie now."""
    return take_snapshot(SOURCE, base=context.base, cache=context.digests).link


def accepted(context: RunContext) -> list[str]:
    return [entry.target.sha256 for entry in refs.history(context.workspace, accepted_ref(context.pipeline))]


def load(workspace: Workspace, receipt: Link) -> ContractReceipt:
    return workspace.load(receipt, ContractReceipt)


def test_a_split_that_cannot_be_told_is_refused_when_the_contract_is_read(context: RunContext) -> None:
    say(context, CONTRACT + "leakage: [{id: apart, columns: [id]}]\nsplits: {sql: headway_split(usr)}\n")
    with pytest.raises(ConfigError, match=r"events.yaml: splits.sql gives no split for a row: .*usr.*over id, at"):
        gate.read_contract_file(context.base / "events.yaml")


def test_the_same_data_find_their_receipt_again_though_they_were_accepted_meanwhile(
    context: RunContext, validate: Validate
) -> None:
    write(context, 100)
    first = validate()
    assert validate() == first
    write(context, 150)
    second = validate()
    assert load(context.workspace, second).baseline == first
    assert validate() == second
    assert accepted(context) == [first.sha256, second.sha256]


def test_what_the_contract_says_is_recorded_for_metrics_also_of_a_receipt_that_is_found_and_before_a_refusal(
    context: RunContext, validate: Validate
) -> None:
    say(
        context,
        CONTRACT
        + "rules: [{id: small, column: id, max: 50, severity: warning}]\n"
        + "drift: [{id: ids, columns: [id], max_psi: 0.2, severity: warning}]\n",
    )
    write(context, 100)
    validate()
    write(context, 100, start=1000)
    validate()
    validate()
    write(context, 100, age_s=100 * 3600)
    with pytest.raises(ContractViolation):
        validate()
    events = [each for each in read_events(context.base / "ledger.jsonl") if each["event"] == "validate.verdicts"]
    first, shifted, found, old = events
    assert first["num_broken"] == {"critical": 0, "warning": 1, "info": 0} and first["broken"]["warning"] == ["small"]
    assert shifted["broken"]["warning"] == ["small", "ids"] and shifted["drift"]["ids"] > 0.25
    assert {**shifted, "unix_s": 0} == {**found, "unix_s": 0}
    assert old["broken"]["critical"] == ["fresh"] and old["num_rows"] == 100


def test_what_is_refused_is_no_baseline(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    first = validate()
    write(context, 201)
    with pytest.raises(ContractViolation, match=r"volume \(2\.01 times the 100 rows accepted\)"):
        validate()
    write(context, 200)
    second = load(context.workspace, validate())
    assert second.baseline == first
    assert len(accepted(context)) == 2


def test_the_page_leads_to_source_data_and_other_reports_and_dates_the_data_it_was_made_of(
    context: RunContext, validate: Validate
) -> None:
    write(context, 100)
    first = validate()
    write(context, 150)
    page = (context.workspace.local_root / contract_page(validate())).read_text()
    folder = context.workspace.local_root / "reports"
    paths = re.findall(r'<a href="([^"#]*)"', page)
    assert len(paths) >= 5 and contract_page(first).removeprefix("reports/") in paths
    # Where the files lay is written down by the stage before, which does not run here.
    assert [path for path in paths if not (folder / path).exists() and "places/" not in path] == []
    newest = datetime.datetime.fromtimestamp(NOW_S - 3600, datetime.UTC)
    assert f"rows up to {newest:%Y-%m-%d}" in page.partition("</header>")[0]
    assert "<a href" not in without_links(page.encode()).decode(), "a copy elsewhere leads nowhere"


def test_a_receipt_that_was_fresh_is_refused_when_it_is_old(
    context: RunContext, validate: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(context, 100)
    first = validate()
    monkeypatch.setattr(gate.time, "time", lambda: NOW_S + 24 * 3600)
    with pytest.raises(ContractViolation, match=r"fresh \(the newest row is 25\.0 hours old\)"):
        validate()
    assert load(context.workspace, first).passed
    assert accepted(context) == [first.sha256]


def test_the_report_says_what_the_gate_says_by_the_clock(
    context: RunContext, validate: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, passed when the clock says so, and refused again; the receipt is found each time."""
    rule = "rules: [{id: few, column: id, min: 1, action: quarantine}]\nquarantine_limit_ratio: 0.5\n"
    say(context, CONTRACT + rule)
    write(context, 100, age_s=-25 * 3600)
    found: list[bool] = []
    context.ledger.listeners.append(lambda event: found.append(event["found"]) if "found" in event else None)

    def pages() -> dict[str, str]:
        names = context.workspace.names("reports")
        return {name: context.workspace.read(f"reports/{name}").decode() for name in names}

    with pytest.raises(ContractViolation, match=r"fresh \(the newest row lies 25\.0 hours in the future\)") as message:
        validate()
    (name, refusal), (own, first) = sorted(pages().items())
    assert name in message.value.advice and "-refused-2027" in name
    assert "<h1>Refused</h1>" in refusal and "lies 25.0 hours in the future" in refusal
    assert "<h1>Passed</h1>" in first and "1 row left out" in first
    assert "Evaluated again each time" in first and "hours in the future" not in first
    monkeypatch.setattr(gate.time, "time", lambda: NOW_S + 2 * 3600)
    link = validate()
    assert own == contract_page(link).rpartition("/")[2] and len(pages()) == 2
    monkeypatch.setattr(gate.time, "time", lambda: NOW_S + 50 * 3600)
    with pytest.raises(ContractViolation, match=r"fresh \(the newest row is 25\.0 hours old\)") as message:
        validate()
    (latest,) = {*pages()} - {own, name}
    assert latest in message.value.advice and "the newest row is 25.0 hours old" in pages()[latest]
    assert pages() == {own: first, name: refusal, latest: pages()[latest]}
    assert found == [False, True, True]
    key = stages.stage_key("validate", gate.validate_inputs(context, "events.yaml", evaluated(context), ShardSpec()))
    record = stages.recorded(context.workspace, "validate", key)
    assert record is not None and f"reports/{own}" in [file.path for file in record.files]


def test_a_breaking_change_is_refused_before_anything_is_read(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    validate()
    say(context, CONTRACT.replace("1000000", "999").replace("1.0.0", "1.1.0"))
    with pytest.raises(
        ConfigError, match=r"version 1\.1\.0 breaks what 1\.0\.0 accepted: columns\.id\.max is 999"
    ) as message:
        validate()
    assert "Call it version 2.0.0" in message.value.advice
    say(context, CONTRACT.replace("1000000", "999").replace("1.0.0", "2.0.0"))
    assert load(context.workspace, validate()).contract_version == "2.0.0"


def test_files_that_stay_are_not_counted_again(context: RunContext, validate: Validate) -> None:
    write(context, 100, name="a.parquet")
    write(context, 100, name="b.parquet", start=100)
    validate()
    write(context, 50, name="c.parquet", start=200)
    known: list[int] = []
    context.ledger.listeners.append(
        lambda event: known.append(event["known_files"]) if "known_files" in event else None
    )
    validate()
    assert known == [2]


def test_a_given_suite_is_part_of_the_key_and_of_the_receipt(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    say(context, CONTRACT + "suite: suite.json\n")
    with pytest.raises(ConfigError, match=r"suite\.json: the suite cannot be read"):
        validate()
    suite = '{"expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": VALUE}}]}'
    (context.base / "suite.json").write_text(suite.replace("VALUE", "100"))
    receipt = load(context.workspace, validate())
    assert receipt.verdicts[-1].rule_id == "suite.1"
    (context.base / "suite.json").write_text(suite.replace("VALUE", "101"))
    say(context, (CONTRACT + "suite: suite.json\n").replace("1.0.0", "2.0.0"))
    with pytest.raises(ContractViolation, match=r"suite\.1"):
        validate()


SUITE = """{"expectations": [{"type": "expect_column_values_to_be_between",
"kwargs": {"column": "id", "min_value": 0, "max_value": MOST}}]}"""


def test_a_suite_that_asks_more_needs_another_major_version_as_the_contract_s_own_rules_do(
    context: RunContext, validate: Validate
) -> None:
    write(context, 100)
    say(context, CONTRACT + "suite: suite.json\n")
    suite = context.base / "suite.json"
    suite.write_text(SUITE.replace("MOST", "1000"))
    receipt = load(context.workspace, validate())
    assert receipt.suite is not None and context.workspace.read(receipt.suite.path) == suite.read_bytes()
    suite.write_text(SUITE.replace("MOST", "999"))
    with pytest.raises(
        ConfigError, match=r"1\.0\.0 breaks what 1\.0\.0 accepted: suite\.1 .* max_value 999"
    ) as message:
        validate()
    assert "Call it version 2.0.0" in message.value.advice
    say(context, (CONTRACT + "suite: suite.json\n").replace("1.0.0", "2.0.0"))
    second = load(context.workspace, validate())
    assert second.suite not in (None, receipt.suite)
    suite.write_text(SUITE.replace("MOST", "1001"))
    assert load(context.workspace, validate()).contract == second.contract


def test_a_receipt_without_a_suite_has_the_bytes_it_always_had(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    assert b"suite" not in load(context.workspace, validate()).to_bytes()


@pytest.mark.parametrize("fate", ["altered", "gone"])
def test_an_accepted_contract_that_cannot_be_read_is_told_and_refuses_nothing(
    context: RunContext, validate: Validate, fate: str
) -> None:
    write(context, 100)
    kept = load(context.workspace, validate()).contract
    path = context.workspace.local_path(kept.path)
    path.write_bytes(b"name: other\n") if fate == "altered" else path.unlink()
    told: list[str] = []
    context.ledger.listeners.append(
        lambda event: told.append(event["message"]) if event["event"] == "validate.accepted_unreadable" else None
    )
    say(context, CONTRACT.replace("1000000", "999"))
    validate()
    (message,) = told
    assert kept.path in message and "whether version 1.0.0 breaks it is not known" in message


def test_the_split_is_an_input_of_leakage_alone(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    snapshot = context.workspace.publish_document(take_snapshot(SOURCE, base=context.base, cache=context.digests))

    def inputs(salt: str) -> dict[str, object]:
        return gate.validate_inputs(context, "events.yaml", snapshot, ShardSpec(split_salt=salt))

    assert inputs("a") == inputs("b")
    say(context, CONTRACT + "leakage: [{id: apart, columns: [id]}]\n")
    assert inputs("a") != inputs("b")


def test_a_snapshot_is_not_its_own_baseline(context: RunContext, validate: Validate) -> None:
    write(context, 100)
    receipt = load(context.workspace, validate())
    assert baseline_of(context.workspace, context.pipeline, receipt.snapshot) is None
    assert baseline_of(context.workspace, context.pipeline, Link(kind="snapshot", sha256="0" * 64)) == receipt


@pytest.mark.process
def test_the_same_bytes_read_in_another_way_are_judged_and_sharded_anew(context: RunContext) -> None:
    """What is remembered of a file by its digest is void once its cells mean something else."""
    (context.base / "data").mkdir()
    (context.base / "data" / "part.csv").write_text("id,word\n" + "".join(f"{number},NA\n" for number in range(50)))
    say(context, "name: words\nversion: 1.0.0\ncolumns:\n  id: {type: int64}\n  word: {type: string}\n")

    def taken(*nulls: str) -> tuple[SourceSpec, Link]:
        source = SourceSpec(uri="data", format="csv", csv=CsvOptions(nulls=nulls), column_types={"word": "string"})
        snapshot = take_snapshot(source, base=context.base, cache=context.digests)
        return source, context.workspace.publish_document(snapshot)

    as_text, as_null = taken(""), taken("", "NA")
    receipt = gate.validate.fn(context, "events.yaml", *as_text, ShardSpec())
    with pytest.raises(ContractViolation, match="word"):
        gate.validate.fn(context, "events.yaml", *as_null, ShardSpec())

    (one,), (again,), (other,) = (
        source_rows(context.workspace, context.base, *read, receipt) for read in (as_text, as_text, as_null)
    )
    assert one.sha256 == other.sha256
    assert one.reading == again.reading != other.reading


def test_a_command_that_asks_several_times_reads_the_contract_once(
    context: RunContext, validate: Validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(context, 100)
    read: list[Path] = []
    real = contract_file.read_contract_text

    def counting(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(contract_file, "read_contract_text", counting)
    with using_contract_files():
        take(context, "events.yaml", SOURCE)
        validate()
        validate()
    assert len(read) == 1
