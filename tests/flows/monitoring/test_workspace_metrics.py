"""What Prometheus is told: what it can parse, what is declared alone, and counters that never fall."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from headway.data_contracts.store.plain_text import distinct_line
from headway.flows.accounts.flow_ledgers import ledger_spool, start_ticks
from headway.flows.accounts.goodput import STATES
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.families import FAMILIES
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.show.board import read_board
from headway.flows.show.board_page import render_html
from headway.tasks.ownership.pipeline_history import FailedRetrain, PipelineEvent, record_failure
from headway.tasks.prove.scrub import REPORT
from headway.training.launch.base.failure import Failure
from headway.training.observe.ledger import Ledger
from tests.flows.accounts.lives import LOST, Life, numbered, verdicts

Value = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


@pytest.fixture
def here() -> dict[str, object]:
    """Of a flow run that goes on: this process stands for it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}


def values(metrics: WorkspaceMetrics) -> Value:
    text = generate_latest(metrics).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Value, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_an_empty_workspace_has_counters_of_nothing_and_what_may_come_is_0_from_the_start(life: Life) -> None:
    """A series that begins with its first event has no increase, and an alert on one would be silent."""
    found = values(WorkspaceMetrics(life.workspace))
    assert value(found, "train_steps_total") == 0
    assert value(found, "train_checkpoint_total", op="verify", outcome="corrupt") == 0
    assert value(found, "train_interruptions_total", cause="oom") == 0
    assert [value(found, "train_time_seconds_total", state=state) for state in STATES] == [0.0] * len(STATES)


def test_labels_are_text_of_bounded_length_and_two_are_never_one(life: Life) -> None:
    """`headway metrics` prints them to a terminal, and Prometheus refuses a whole look with one series twice."""
    names = ("\x1b]0;title\x07", "\x9b31m", "a\u202eb", "half \udc80", "x" * 100_000, "x" * 99_999)
    for number, name in enumerate(names):
        life.flow(str(number), 0.0, 1.0, process={"pipeline": name}, has_run=False)
    page = generate_latest(WorkspaceMetrics(life.workspace)).decode()
    assert page.replace("\n", "").isprintable() and max(map(len, page.splitlines())) < 1_000
    found = {labels for name, labels in values(WorkspaceMetrics(life.workspace)) if name == "train_runs_total"}
    assert len({dict(labels)["pipeline"] for labels in found}) == len(names)


def test_owner_and_job_class_are_those_of_a_pipeline_s_newest_retrain(life: Life, here) -> None:
    vision = {"owner": "vision", "job_class": "critical"}
    life.flow("new", 50.0, 60.0, process=vision, has_run=False)
    life.flow("old", 0.0, 10.0, process={"owner": "text", "job_class": "experiment"}, has_run=False)
    life.flow("b", 0.0, 10.0, process={"pipeline": "b"}, has_run=False)
    metrics = WorkspaceMetrics(life.workspace)
    found = values(metrics)
    infos = [dict(labels) for name, labels in found if name == "headway_pipeline_info"]
    assert infos == [{"pipeline": "b", "owner": "", "job_class": "standard"}, {"pipeline": "p", **vision}]
    classes = {dict(labels)["job_class"] for name, labels in found if name == "train_runs_total"}
    assert classes == {"standard", "critical", "experiment"}
    life.flow("goes on", 70.0, None, process={**here, "owner": "speech", "job_class": "standard"}, has_run=False)
    assert value(values(metrics), "headway_pipeline_info", pipeline="p", owner="speech", job_class="standard") == 1


def test_what_the_contract_said_is_of_the_newest_data_that_were_validated(life: Life) -> None:
    life.flow("new", 50.0, 60.0, has_run=False, verdicts=verdicts("age-drifts", quarantined=5, age=0.4))
    life.flow("old", 0.0, 10.0, has_run=False, verdicts=verdicts())
    life.flow("found nothing out", 70.0, 80.0, has_run=False)
    life.flow("odd", 90.0, 95.0, has_run=False, verdicts={"num_rows": "many"})
    found = values(WorkspaceMetrics(life.workspace))
    broken = {severity: value(found, "headway_contract_broken_rules", pipeline="p", rule_severity=severity)
              for severity in ("critical", "warning", "info")}  # fmt: skip
    assert broken == {"critical": 0, "warning": 1, "info": 0}
    assert value(found, "headway_contract_quarantined_ratio", pipeline="p") == 0.05
    assert value(found, "headway_contract_drift_psi", pipeline="p", rule="age") == 0.4
    assert value(found, "train_runs_total", pipeline="p", job_class="standard", outcome="succeeded", cause="") == 4


def test_windows_that_were_long_enough_are_counted_by_class_from_the_first_look(life: Life) -> None:
    of = {"job_class": "critical", "in_window": True}
    life.flow("done", 0.0, 10.0, has_run=False, process=of)
    life.flow("cut", 20.0, 30.0, has_run=False, stop="window closed", process=of)
    life.flow("stopped by a person", 40.0, 50.0, has_run=False, stop="requested", process=of)
    life.flow("by hand", 60.0, 70.0, has_run=False, process={"pipeline": "b"})
    found = values(WorkspaceMetrics(life.workspace))
    for pipeline, job_class, done, cut in (("p", "critical", 1, 1), ("b", "standard", 0, 0)):
        for outcome, number in (("done", done), ("cut", cut)):
            labels = {"pipeline": pipeline, "job_class": job_class, "outcome": outcome}
            assert value(found, "train_window_runs_total", **labels) == number


def test_figures_of_what_is_over_are_those_of_the_accounts(life: Life) -> None:
    life.flow("a", 0.0, 60.0, steps_per_epoch=4.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0), ("checkpoint", 10.5, 10.75), failure=LOST)
    life.attempt("a", 20.0, 40.0, numbered(5, 12, 25.0), ("restore", 21.0, 24.0))
    life.flow("b", 100.0, 101.0, failed=("ContractViolation", "contract", "validate"), has_run=False)
    found, account = values(WorkspaceMetrics(life.workspace)), life.account()
    assert value(found, "train_runs_total", pipeline="p", job_class="standard", outcome="failed", cause="contract") == 1
    assert value(found, "train_runs_total", pipeline="p", job_class="standard", outcome="succeeded", cause="") == 1
    assert value(found, "train_steps_total") == 16
    assert value(found, "train_tokens_total") == 160
    assert value(found, "train_nonfinite_total") == 16, "no step has a loss"
    assert value(found, "train_interruptions_total", cause="infrastructure") == 1
    assert value(found, "train_requeues_total", reason="attempt") == 1
    assert value(found, "train_step_duration_seconds_count", phase="step") == 16
    assert value(found, "train_step_duration_seconds_bucket", phase="sync", le="0.25") == 0
    assert value(found, "train_step_duration_seconds_bucket", phase="sync", le="0.5") == 16
    assert value(found, "train_checkpoint_total", op="save", outcome="ok") == 1
    assert value(found, "train_recovery_duration_seconds_count", job_class="standard", stage="total") == 1
    assert value(found, "train_waste_device_seconds_total", cause="infrastructure") == pytest.approx(
        account.waste_device_s["infrastructure"]
    )
    assert value(found, "train_run_ettr_ratio", pipeline="p") == pytest.approx(account.ettr)
    assert value(found, "train_epoch_duration_seconds", pipeline="p") == pytest.approx(account.epoch_s)
    assert value(found, "train_scaling_efficiency_ratio", pipeline="p", devices="2") == 1.0
    seconds = sum(value(found, "train_time_seconds_total", state=state) for state in STATES)
    assert seconds == pytest.approx(61.0), "all flow runs, whole"


def test_a_step_that_a_guard_refused_for_it_counts_as_not_finite_and_a_spike_does_not(life: Life) -> None:
    """No step is recorded of it: an alert on those that were taken would be silent."""
    life.flow("a", 0.0, 60.0)
    life.attempt("a", 1.0, 12.0, [], alarms=("non-finite", "spike", "non-finite"))
    assert value(values(WorkspaceMetrics(life.workspace)), "train_nonfinite_total") == 2


def test_a_run_that_goes_on_is_counted_step_by_step_and_once_when_it_is_over(
    life: Life, here: dict[str, object]
) -> None:
    life.flow("a", 0.0, None, process=here)
    life.attempt("a", 1.0, None, numbered(1, 6, 3.0))
    metrics = WorkspaceMetrics(life.workspace)
    found = [values(metrics)]
    assert value(found[0], "train_steps_total") == 6
    assert value(found[0], "train_run_last_step_timestamp_seconds", pipeline="p") == 9.0
    spool = next(life.run_dir.rglob("rank-0.jsonl"))
    more = spool.read_text().splitlines()[-1].replace('"step":6', '"step":7') + "\n"
    with spool.open("a") as stream:
        stream.write(more)
    found.append(values(metrics))
    assert value(found[1], "train_steps_total") == 7
    with contextlib.closing(Ledger(ledger_spool(life.workspace, "a"), flow_run="a")) as ledger:
        ledger.event("flow.end")
    found.append(values(metrics))
    assert value(found[2], "train_steps_total") == 7
    assert value(found[2], "train_runs_total", pipeline="p", job_class="standard", outcome="succeeded", cause="") == 1
    assert not any(name == "train_run_info" for name, _ in found[2])
    shutil.rmtree(life.workspace.local_path("ledger"))
    shutil.rmtree(life.run_dir)
    found.append(values(WorkspaceMetrics(life.workspace)))
    assert found[3].keys() == found[2].keys(), "an exporter that was started again says the same"
    for before, after in itertools.pairwise(found):
        for key, figure in before.items():
            if key[0].startswith("train_") and key[0].endswith(("_total", "_bucket", "_count")):
                assert after[key] >= figure, key


def test_steps_of_trials_count_for_all_their_runs_live_and_over(life: Life, here: dict[str, object]) -> None:
    other = "fedcba9876543210"
    life.flow("a", 0.0, None, process=here, more_runs=[other])
    life.attempt("a", 1.0, None, numbered(1, 6, 3.0))
    shutil.copytree(life.run_dir, life.workspace.local_path(f"runs/{other}"))
    metrics = WorkspaceMetrics(life.workspace)
    assert value(values(metrics), "train_steps_total") == 12
    with contextlib.closing(Ledger(ledger_spool(life.workspace, "a"), flow_run="a")) as ledger:
        ledger.event("flow.end")
    assert value(values(metrics), "train_steps_total") == 12


def test_costs_are_said_where_a_profile_has_prices_and_only_there(life: Life) -> None:
    life.flow("a", 0.0, 30.0)
    life.attempt("a", 0.0, 30.0, numbered(1, 20, 2.0), world_size=4)
    prices = PricesSpec(device_hour_usd={"any": 36.0}, device_watts={"any": 100.0})
    found = values(WorkspaceMetrics(life.workspace, prices))
    assert value(found, "train_cost_usd_total", use="productive") == pytest.approx(0.01 * 4 * 20)
    assert value(found, "train_cost_usd_total", use="overhead") == pytest.approx(0.01 * 4 * 10)
    assert value(found, "train_energy_joules_total", source="model") == pytest.approx(100 * 4 * 30)
    assert not any("cost" in name or "joules" in name for name, _ in values(WorkspaceMetrics(life.workspace)))


def test_a_quarantined_checkpoint_counts_while_the_run_goes_on(life: Life, here: dict[str, object]) -> None:
    life.flow("a", 0.0, None, process=here)
    life.attempt("a", 1.0, None, numbered(1, 6, 3.0))
    metrics = WorkspaceMetrics(life.workspace)
    assert value(values(metrics), "train_checkpoint_total", op="verify", outcome="corrupt") == 0
    with contextlib.closing(Ledger(next(life.run_dir.rglob("rank-0.jsonl")), rank=0)) as ledger:
        ledger.event("checkpoint.quarantined", checkpoint="step-4", problem="a bit", what="")
    assert value(values(metrics), "train_checkpoint_total", op="verify", outcome="corrupt") == 1


def test_two_retrains_of_one_pipeline_give_no_value_twice(life: Life, here: dict[str, object]) -> None:
    """Prometheus would refuse the whole page."""
    for name in ("a", "b"):
        life.flow(name, 0.0, None, process=here)
    found = generate_latest(WorkspaceMetrics(life.workspace)).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in found if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_a_stray_file_among_ledgers_ends_no_look(life: Life) -> None:
    life.flow("a", 0.0, 1.0, has_run=False)
    (life.workspace.local_root / "ledger" / "stray").write_text("{}")
    assert value(values(WorkspaceMetrics(life.workspace)), "train_steps_total") == 0
    assert "no pipeline is failing" in render_html(read_board(life.workspace.uri, 30, PricesSpec()))


@pytest.mark.parametrize("odd", [10**400, -1, 1e300])
def test_a_record_with_a_number_beyond_measure_silences_no_other_figure(life: Life, odd: float) -> None:
    """An integer that no float holds ended every look, and with it all alerts."""
    life.flow("a", 0.0, 1.0, has_run=False)
    report = {
        **{"format_version": 1, "looked_unix_s": 1.0, "num_files": 1, "size_bytes": 1, "num_checked": 1},
        **{"checked_bytes": 1, "num_never_checked": 0, "oldest_check_unix_s": 1.0, "damaged": []},
    }
    life.workspace.publish_json(REPORT, report)
    assert ("headway_scrub_unchecked_files", ()) in values(WorkspaceMetrics(life.workspace))
    for name, value_of in report.items():
        if isinstance(value_of, int | float):
            life.workspace.publish_json(REPORT, report | {name: odd})
            found = values(WorkspaceMetrics(life.workspace))
            assert ("headway_scrub_unchecked_files", ()) not in found, name
            assert value(found, "train_steps_total") == 0
    with pytest.raises(ValidationError):
        PipelineEvent(pipeline="p", windows_cut=odd)  # type: ignore[arg-type]


def test_names_and_causes_of_any_text_stay_values_of_labels(life: Life) -> None:
    name, cause = 'a "p"\n{}', "back\\slash\nline\x1b[31m"
    failure = FailedRetrain(
        pipeline=name,
        stage="validate",
        failed_unix_s=1.0,
        host="n7",
        failure=Failure(cause=cause),
        card="",
        flow_run="x",
    )
    record_failure(life.workspace, failure)
    metrics = WorkspaceMetrics(life.workspace)
    what = {"pipeline": distinct_line(name, 500), "stage": "validate", "cause": distinct_line(cause, 500)}
    assert what["pipeline"].startswith(r'a "p"\n{} (sha256 ')
    assert value(values(metrics), "headway_retrain_failed_timestamp_seconds", **what) == 1.0
    assert list(parse_openmetrics(generate_openmetrics(metrics).decode()))


def test_whatever_is_exported_is_declared_and_three_series_grow_with_ranks(life: Life, here: dict[str, object]) -> None:
    life.flow("done", 0.0, 60.0)
    life.attempt("done", 1.0, 12.0, numbered(1, 8, 3.0), failure=LOST)
    life.flow("a", 100.0, None, process=here)
    found = parse_openmetrics(generate_openmetrics(WorkspaceMetrics(life.workspace)).decode())
    for family in found:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert FAMILIES[name].kind == family.type and FAMILIES[name].help == family.documentation
    # DESIGN's bound: at most five series a rank.
    assert {name for name, family in FAMILIES.items() if "rank" in family.labels} == {
        "train_rank_heartbeat_timestamp_seconds",
        "train_rank_step",
        "train_rank_work_ratio",
    }
    for name, family in FAMILIES.items():
        assert family.help.endswith(".") and (family.kind == "counter") == name.endswith("_total")
        assert not (family.kind == "histogram" and {"rank", "run", "flow_run"} & set(family.labels))


def test_a_ledger_that_cannot_be_read_silences_no_other_run(life: Life, here: dict[str, object]) -> None:
    life.flow("a", 0.0, 60.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0))
    spool = ledger_spool(life.workspace, "broken")
    spool.parent.mkdir()
    os.mkfifo(spool)
    found = values(WorkspaceMetrics(life.workspace))
    assert value(found, "train_steps_total") == 8


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.process
def test_a_flow_run_that_is_killed_turns_into_a_lost_one_at_the_next_look(
    life: Life, sleeper: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = sleeper()
    at = {"host": socket.gethostname(), "pid": process.pid, "start_ticks": start_ticks(process.pid)}
    life.flow("a", 0.0, None, process=at)
    metrics = WorkspaceMetrics(life.workspace)
    assert any(name == "train_run_info" for name, _ in values(metrics))
    process.kill()
    process.wait()
    found = values(metrics)
    assert (
        value(found, "train_runs_total", pipeline="p", job_class="standard", outcome="lost", cause="infrastructure")
        == 1
    )
    assert not any(name == "train_run_info" for name, _ in found)


def test_another_workspace_of_the_same_machine_is_none_of_it(life: Life, tmp_path: Path) -> None:
    life.flow("a", 0.0, 60.0)
    found = values(WorkspaceMetrics(Life(tmp_path / "other").workspace))
    assert not any(name == "train_runs_total" for name, _ in found)
