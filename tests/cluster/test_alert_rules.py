"""The shipped rules, by Prometheus's own tools: what fires, what does not, and how many events it takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.flows.monitoring.alerts import ALERTS
from tests.cluster.monitoring import SHIPPED, alertmanager_config, tool
from tests.cluster.prerequisites import why_no_monitoring
from tests.pages import block

TARGET = 'instance="host:9464", job="headway", owner="vision"'
SEEN = {"up": "1+0x{n}", "headway_status_timestamp_seconds": "0+{step}x{n}"}
"""Of a workspace that is looked at all the time."""
LONG_STEPS, EVALUATED_STEPS = 55, 4
FIRING = 'group by (alertname, severity, job_class) (ALERTS{alertstate="firing"})'


@pytest.fixture(autouse=True, scope="module")
def tools() -> None:
    if reason := why_no_monitoring():
        pytest.skip(reason)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Series from second 0 on, and what fires at a moment; nothing else does."""

    fires: str = ""
    """Names of alerts, tickets with a `~` before them, and `/` and the job class behind those that have one."""
    labels: str = ""
    """That they have besides."""
    series: dict[str, str]
    """In promtool's notation, one value a step; `{n}` is as many as there are steps."""
    at_s: int
    step_s: int = 60
    is_watched: bool = True
    rules: dict[str, Any] | None = None
    """Of the site, beside ours."""

    is_close: bool = False
    """Whether its moment is so close to what the rule says that each step has to be looked at."""

    @property
    def evaluated_s(self) -> int:
        """How often promtool looks at all rules, which takes it 15 ms of a core: in a long time, seldom."""
        is_seldom = self.at_s // self.step_s >= LONG_STEPS and not self.is_close
        return EVALUATED_STEPS * self.step_s if is_seldom else self.step_s


def outcome_of(folder: Path, case: Case, rules: Path = SHIPPED / "rules.yaml") -> str:
    """What promtool says against it; empty: nothing."""
    num_steps = case.at_s // case.step_s + 1
    given = {**(SEEN if case.is_watched else {}), **case.series}
    series = []
    for name, values in given.items():
        family, _, labels = name.rstrip("}").partition("{")
        of = TARGET if "absolute" not in labels else ""
        named = f"{family}{{{', '.join(each for each in (labels, of) if each)}}}"
        values = values.replace("{n}", str(num_steps)).replace("{step}", str(case.step_s))
        series.append({"series": named, "values": values})
    expected = []
    for word in case.fires.split():
        name, _, job_class = word.removeprefix("~").partition("/")
        of = f', job_class="{job_class}"' if job_class else case.labels
        expected.append(f'{{alertname="{name}", severity="{"ticket" if word.startswith("~") else "page"}"{of}}}')
    files, site = [str(rules)], []
    if case.rules is not None:
        site = [group["name"] for group in case.rules["groups"]]
        (folder / "site.yaml").write_text(yaml.safe_dump(case.rules))
        files.append(str(folder / "site.yaml"))
    test = {
        "rule_files": files,
        # A site's before ours, which would else find no value of theirs: Prometheus forgets one after five minutes.
        "group_eval_order": [*site, *re.findall(r"^- name: (\S+)$", rules.read_text(), re.MULTILINE)],
        "evaluation_interval": f"{case.evaluated_s}s",
        "tests": [
            {
                "interval": f"{case.step_s}s",
                "external_labels": {"runbooks": "http://docs"},
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": FIRING,
                        "eval_time": f"{case.at_s}s",
                        "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
                    }
                ],
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    done = tool("promtool", "test", "rules", "test.yaml", folder=folder)
    return "" if done.returncode == 0 else done.stdout + done.stderr


FAILED = 'headway_retrain_failed_timestamp_seconds{pipeline="%s", stage="launch", cause="training"}'
FINISHED = 'headway_retrain_finished_timestamp_seconds{pipeline="%s"}'
INFO = 'headway_pipeline_info{pipeline="nightly", job_class="%s"}'
RUNS = 'train_runs_total{pipeline="nightly", job_class="standard", outcome="%s", cause="%s"}'
WINDOWS = 'train_window_runs_total{pipeline="nightly", job_class="%s", outcome="%s"}'
VERIFIED = 'train_checkpoint_total{op="verify", outcome="%s"}'
SECONDS = 'train_device_seconds_total{state="%s"}'
COST = 'train_cost_usd_total{use="productive"}'
STEPS = 'train_step_duration_seconds_%s{phase="step"%s}'
TRAINS = {'train_run_info{pipeline="nightly", flow_run="f", run="r", stage="launch"}': "1+0x{n}"}
SINCE = 'train_run_stage_since_timestamp_seconds{pipeline="nightly"}'
LAST_STEP = 'train_run_last_step_timestamp_seconds{pipeline="nightly"}'
OLD_CHECKPOINT = {
    **TRAINS,
    SINCE: "0+0x{n}",
    LAST_STEP: "0+60x{n}",
    'train_checkpoint_last_durable_timestamp_seconds{pipeline="nightly"}': "0+0x{n}",
}
SCRUBBED = "headway_scrub%s_timestamp_seconds"
PROBE = 'headway_probe_%s{launcher="local"}'
HELD = {'headway_pipeline_held{pipeline="nightly"}': "1+0x{n}"}
SELDOM = {
    "groups": [
        {
            "name": "limits",
            "rules": [
                {
                    "record": "headway:silence_limit:seconds",
                    "expr": "vector(48 * 3600)",
                    "labels": {"pipeline": "seldom"},
                }
            ],
        }
    ]
}
"""What docs/how-to/monitoring.md shows, with another limit."""
DAY_S = 86400


def after(steps: int, by: int, then: int = 500) -> str:
    """A counter that grows once, from 7, after so many steps."""
    return f"7+0x{steps - 1} {7 + by}+0x{then}"


CASES = {
    "nothing happens": Case(
        series={
            **TRAINS,
            FINISHED % "nightly": "0+0x{n}",
            SINCE: "0+0x{n}",
            LAST_STEP: "0+60x{n}",
            'train_rank_heartbeat_timestamp_seconds{pipeline="nightly", rank="0"}': "0+60x{n}",
            'train_checkpoint_last_durable_timestamp_seconds{pipeline="nightly"}': "0+60x{n}",
            "headway_workspace_free_bytes": "1e12-1e6x{n}",
            RUNS % ("succeeded", ""): "0+1x{n}",
            VERIFIED % "ok": "0+1x{n}",
            VERIFIED % "corrupt": "3+0x{n}",
            SECONDS % "productive": "0+60x{n}",
            SECONDS % "redone": "0+1x{n}",
            "train_nonfinite_total": "4+0x{n}",
            'train_interruptions_total{cause="infrastructure"}': "9+0x{n}",
        },
        at_s=6 * 3600,
    ),
    "a retrain failed": Case(series={FAILED % "nightly": "0+0x{n}"}, at_s=7200, fires="RetrainFailed"),
    "and it is an experiment": Case(
        series={FAILED % "nightly": "0+0x{n}", INFO % "experiment": "1+0x{n}"},
        at_s=7200,
        fires="RetrainFailed",
        labels=', job_class="experiment"',
    ),
    "another pipeline has a class": Case(
        series={FAILED % "nightly": "0+0x{n}", (INFO % "critical").replace("nightly", "b"): "1+0x{n}"},
        at_s=7200,
        fires="RetrainFailed",
    ),
    "and somebody holds the pipeline": Case(series={FAILED % "nightly": "0+0x{n}", **HELD}, at_s=7200),
    "three in a row": Case(
        series={RUNS % ("failed", "training"): "0 1 2 3+0x{n}"}, at_s=600, fires="RetrainsFailInARow"
    ),
    "two in a row": Case(series={RUNS % ("failed", "training"): "0 1 2+0x{n}"}, at_s=600),
    "three, and one between them that finished": Case(
        series={RUNS % ("failed", "training"): "0 1 2 3+0x{n}", RUNS % ("succeeded", ""): "0 0 1+0x{n}"}, at_s=600
    ),
    "three of other causes, one of them killed": Case(
        series={
            RUNS % ("failed", "training"): "0 1 1+0x{n}",
            RUNS % ("failed", "oom"): "0 0 1+0x{n}",
            RUNS % ("lost", "infrastructure"): "_ _ _ 1+0x{n}",
        },
        at_s=600,
        fires="RetrainsFailInARow",
    ),
    "three pipelines within an hour": Case(
        series={FAILED % name: "0+0x{n}" for name in ("a", "b", "c")},
        at_s=1200,
        fires="FailureCascade RetrainFailed",
    ),
    "three pipelines over a day": Case(
        series={FAILED % name: "0+0x{n}" for name in ("a", "b", "c")}, at_s=7200, fires="RetrainFailed"
    ),
    "a corrupt checkpoint, the first": Case(
        series={VERIFIED % "corrupt": "_ _ _ 1+0x{n}"}, at_s=180, fires="CheckpointCorrupt"
    ),
    "another one": Case(series={VERIFIED % "corrupt": after(3, 1)}, at_s=180, fires="CheckpointCorrupt"),
    "those of before anybody looked": Case(series={VERIFIED % "corrupt": "5+0x{n}"}, at_s=1800),
    "one of two hours ago": Case(series={VERIFIED % "corrupt": after(3, 1)}, at_s=7200 + 300),
    "a stopped rank": Case(
        series={
            **TRAINS,
            'train_process_problem{pipeline="nightly", role="rank 1", state="stopped"}': "1+0x{n}",
        },
        at_s=0,
        fires="ProcessStopped",
    ),
    "a rank that is silent for a minute": Case(
        series={**TRAINS, 'train_process_problem{pipeline="nightly", role="rank 1", state="silent"}': "1+0x{n}"},
        at_s=600,
    ),
    "no step": Case(series={**TRAINS, SINCE: "0+0x{n}", LAST_STEP: "60+0x{n}"}, at_s=1200, fires="RunWithoutProgress"),
    "no step yet in this stage": Case(series={**TRAINS, SINCE: "600+0x{n}", LAST_STEP: "60+0x{n}"}, at_s=1200),
    "no step, for it evaluates": Case(
        series={
            'train_run_info{pipeline="nightly", flow_run="f", run="r", stage="evaluate"}': "1+0x{n}",
            SINCE: "0+0x{n}",
            LAST_STEP: "60+0x{n}",
        },
        at_s=1200,
    ),
    "one rank of two is silent": Case(
        series={
            **TRAINS,
            'train_rank_heartbeat_timestamp_seconds{pipeline="nightly", rank="0"}': "0+60x{n}",
            'train_rank_heartbeat_timestamp_seconds{pipeline="nightly", rank="1"}': "60+0x{n}",
        },
        at_s=900,
        fires="RunWithoutProgress",
    ),
    "a damaged file": Case(series={"headway_scrub_damaged_files": "0 0 1+0x{n}"}, at_s=180, fires="StoredFileDamaged"),
    "files that are whole": Case(series={"headway_scrub_damaged_files": "0+0x{n}"}, at_s=180),
    "a scrub that comes round too slowly": Case(
        series={SCRUBBED % "_oldest_check": f"{-31 * DAY_S}+0x{{n}}", SCRUBBED % "": f"{-DAY_S}+0x{{n}}"},
        at_s=1800,
        fires="~ScrubOverdue",
    ),
    "a scrub that no longer runs": Case(
        series={SCRUBBED % "": f"{-3 * DAY_S}+0x{{n}}"}, at_s=1800, fires="~ScrubOverdue"
    ),
    "a scrub of yesterday": Case(
        series={SCRUBBED % "_oldest_check": f"{-29 * DAY_S}+0x{{n}}", SCRUBBED % "": f"{-2 * DAY_S}+0x{{n}}"}, at_s=1800
    ),
    "a full disk": Case(series={"headway_workspace_free_bytes": "1.9e9+0x{n}"}, at_s=120, fires="WorkspaceDiskFull"),
    "a disk that fills": Case(
        series={"headway_workspace_free_bytes": "5e11-6e8x{n}"}, at_s=4 * 3600, fires="~WorkspaceDiskFills"
    ),
    "a silent schedule": Case(
        series={FINISHED % "nightly": "0+0x{n}"}, at_s=38 * 3600, step_s=3600, fires="ScheduleSilent"
    ),
    "a night and a day": Case(series={FINISHED % "nightly": "0+0x{n}"}, at_s=35 * 3600, step_s=3600),
    "silent, for somebody holds it": Case(
        series={FINISHED % "nightly": "0+0x{n}", **HELD}, at_s=38 * 3600, step_s=3600
    ),
    "one that retrains seldom": Case(series={FINISHED % "seldom": "0+0x{n}"}, at_s=47 * 3600, step_s=300, rules=SELDOM),
    "one that retrains seldom, and is silent": Case(
        series={FINISHED % "seldom": "0+0x{n}"}, at_s=49 * 3600, step_s=300, rules=SELDOM, fires="ScheduleSilent"
    ),
    "one that is expected and never finished": Case(series={}, at_s=900, rules=SELDOM, fires="ScheduleSilent"),
    "a probe failed": Case(
        series={PROBE % "success": "0+0x{n}", PROBE % "timestamp_seconds": "0+60x{n}"}, at_s=60, fires="ProbeFailed"
    ),
    "a probe of an hour ago succeeded": Case(
        series={
            PROBE % "success": "1+0x{n}",
            PROBE % "timestamp_seconds": "0+0x{n}",
            PROBE % "interval_seconds": "3600+0x{n}",
        },
        at_s=7740,
    ),
    "and no other came": Case(
        series={
            PROBE % "success": "1+0x{n}",
            PROBE % "timestamp_seconds": "0+0x{n}",
            PROBE % "interval_seconds": "3600+0x{n}",
        },
        at_s=7920,
        is_close=True,
        fires="ProbeLate",
    ),
    "a probe that is due each day": Case(
        series={PROBE % "timestamp_seconds": "0+0x{n}", PROBE % "interval_seconds": "86400+0x{n}"}, at_s=7920
    ),
    "the exporter is down": Case(series={"up": "0+0x{n}"}, at_s=180, is_watched=False, fires="ExporterDown"),
    "nobody was ever watched": Case(series={}, at_s=900, is_watched=False, fires="ExporterDown WorkspaceUnseen"),
    "the exporter shows old figures": Case(
        series={"up": "1+0x{n}", "headway_status_timestamp_seconds": "0+0x{n}"},
        at_s=900,
        is_watched=False,
        fires="WorkspaceUnseen",
    ),
    "windows starve": Case(
        series={'headway_pipeline_starving{pipeline="nightly"}': "1+0x{n}"}, at_s=60, fires="~WindowsStarve"
    ),
    "a request that nobody answers": Case(
        series={'headway_retrain_asked_timestamp_seconds{pipeline="nightly"}': "0+0x{n}"},
        at_s=38 * 3600,
        step_s=3600,
        fires="~RequestUnanswered",
    ),
    "a version that waits": Case(
        series={'headway_model_awaits_approval{model="digits"}': "1+0x{n}"},
        at_s=25 * 3600,
        step_s=3600,
        fires="~VersionWaits",
    ),
    "a version that waits since noon": Case(
        series={'headway_model_awaits_approval{model="digits"}': "1+0x{n}"}, at_s=12 * 3600, step_s=3600
    ),
    "low goodput": Case(
        series={SECONDS % "productive": "0+400x{n}", SECONDS % "redone": "0+100x{n}", SECONDS % "queue": "0+45x{n}"},
        at_s=6 * 3600,
        step_s=300,
        fires="~GoodputLow",
    ),
    "low goodput of little training": Case(
        series={SECONDS % "productive": "0+40x{n}", SECONDS % "redone": "0+10x{n}"}, at_s=6 * 3600, step_s=300
    ),
    "long queues, closed windows and nobody at work": Case(
        series={
            SECONDS % "productive": "0+475x{n}",
            SECONDS % "restore": "0+10x{n}",
            SECONDS % "queue": "0+450x{n}",
            SECONDS % "closed_window": "0+450x{n}",
            SECONDS % "down": "0+450x{n}",
        },
        at_s=6 * 3600,
        step_s=300,
    ),
    "five interruptions": Case(
        series={'train_interruptions_total{cause="infrastructure"}': after(3, 5)}, at_s=600, fires="~ManyInterruptions"
    ),
    "four interruptions and a stop": Case(
        series={
            'train_interruptions_total{cause="infrastructure"}': after(30, 4),
            'train_interruptions_total{cause="stopped"}': after(30, 3),
        },
        at_s=3600,
    ),
    "slow recoveries": Case(
        series={
            f"train_recovery_duration_seconds_{part}": "0+0x{n}" if 'le="60"' in part else "0+1x{n}"
            for job_class in ("critical", "standard")
            for part in (
                *(f'bucket{{job_class="{job_class}", stage="total", le="{le}"}}' for le in ("60", "120", "+Inf")),
                f'count{{job_class="{job_class}", stage="total"}}',
            )
        },
        at_s=900,
        fires="~RecoverySlow/critical",
    ),
    "an old checkpoint": Case(series=OLD_CHECKPOINT, at_s=8400, fires="~CheckpointOld"),
    "an old checkpoint of a critical pipeline": Case(
        series={**OLD_CHECKPOINT, INFO % "critical": "1+0x{n}"}, at_s=4800, fires="~CheckpointOld/critical"
    ),
    "one as old of an experiment": Case(series={**OLD_CHECKPOINT, INFO % "experiment": "1+0x{n}"}, at_s=8400),
    "an old checkpoint of a run that has just begun again": Case(
        series={
            **TRAINS,
            SINCE: "8000+0x{n}",
            'train_checkpoint_last_durable_timestamp_seconds{pipeline="nightly"}': "0+0x{n}",
        },
        at_s=8400,
    ),
    "a step that is not finite": Case(series={"train_nonfinite_total": after(3, 1)}, at_s=600, fires="~NonFiniteSteps"),
    "uneven steps": Case(
        series={
            **TRAINS,
            STEPS % ("bucket", ', le="0.05"'): "0+95x{n}",
            STEPS % ("bucket", ', le="1"'): "0+95x{n}",
            STEPS % ("bucket", ', le="2.5"'): "0+100x{n}",
            STEPS % ("bucket", ', le="+Inf"'): "0+100x{n}",
            STEPS % ("count", ""): "0+100x{n}",
        },
        at_s=4200,
        fires="~StepsUneven",
    ),
    "even steps on both sides of a bound": Case(
        series={
            **TRAINS,
            STEPS % ("bucket", ', le="0.1"'): "0+50x{n}",
            STEPS % ("bucket", ', le="0.25"'): "0+100x{n}",
            STEPS % ("bucket", ', le="+Inf"'): "0+100x{n}",
            STEPS % ("count", ""): "0+100x{n}",
        },
        at_s=4200,
    ),
    "steps of two runs": Case(
        series={
            **TRAINS,
            'train_run_info{pipeline="other", flow_run="g", run="s", stage="launch"}': "1+0x{n}",
            STEPS % ("bucket", ', le="0.05"'): "0+95x{n}",
            STEPS % ("bucket", ', le="2.5"'): "0+100x{n}",
            STEPS % ("bucket", ', le="+Inf"'): "0+100x{n}",
            STEPS % ("count", ""): "0+100x{n}",
        },
        at_s=4200,
    ),
    "a kill for want of memory": Case(
        series={'train_node_oom_kills_total{node="host"}': after(3, 1)}, at_s=600, fires="~OutOfMemoryKills"
    ),
    "a contended machine": Case(
        series={
            **TRAINS,
            'train_node_pressure_seconds_total{node="host", resource="cpu", share="some"}': "0+54x{n}",
        },
        at_s=3000,
        fires="~MachineContended",
    ),
    "contended by others, while nothing trains": Case(
        series={'train_node_pressure_seconds_total{node="host", resource="cpu", share="some"}': "0+54x{n}"}, at_s=3000
    ),
    "a device off its bus": Case(
        series={'train_device_xid_errors_total{node="host", device="3", xid="79"}': after(3, 1)},
        at_s=600,
        fires="DeviceFails",
    ),
    "an error of a program": Case(
        series={'train_device_xid_errors_total{node="host", device="3", xid="13"}': after(3, 1)}, at_s=600
    ),
    "a driver that does not answer": Case(
        series={'train_node_devices_answer{node="host"}': "1 1 1 0+0x{n}"}, at_s=600, fires="DeviceFails"
    ),
    "a hot device": Case(
        series={'train_device_throttled{node="host", device="3", why="heat"}': "1+0x{n}"},
        at_s=3600,
        fires="~DeviceThrottled",
    ),
    "one at its power cap, and one that was hot for a moment": Case(
        series={
            'train_device_throttled{node="host", device="3", why="power_cap"}': "1+0x{n}",
            'train_device_throttled{node="host", device="3", why="heat"}': "1 1 1 0+0x{n}",
        },
        at_s=3600,
    ),
    "a rule that warns": Case(
        series={'headway_contract_broken_rules{pipeline="p", rule_severity="warning"}': after(3, 2)},
        at_s=600,
        fires="~DataOutOfLine",
    ),
    "a rule that informs, and one that refused": Case(
        series={
            'headway_contract_broken_rules{pipeline="p", rule_severity="info"}': "2+0x{n}",
            'headway_contract_broken_rules{pipeline="p", rule_severity="critical"}': "2+0x{n}",
        },
        at_s=600,
    ),
    "a dear day": Case(
        series={COST: "0+5x431 2155+12x{n}"}, at_s=int(9.5 * DAY_S), step_s=1800, fires="~CostOutOfLine"
    ),
    "a dear day of each week": Case(
        series={COST: "0+1x100 101+12x48 677+1x252 930+12x{n}"}, at_s=int(9.4 * DAY_S), step_s=1800
    ),
    "a dear day of the first week": Case(series={COST: "0+5x96 485+50x{n}"}, at_s=3 * DAY_S, step_s=1800),
    # Budgets: of ten in an hour two spend it fast; of nine, nobody can say.
    "a fast burn": Case(
        series={RUNS % ("succeeded", ""): after(55, 8), RUNS % ("lost", "infrastructure"): "_x55 2+0x{n}"},
        at_s=57 * 60,
        fires="RunBudgetBurns/standard ~RunBudgetBurns/standard",
    ),
    "failures of experiments, of which more may fail": Case(
        series={
            name.replace("standard", "experiment"): values
            for name, values in (
                (RUNS % ("succeeded", ""), after(55, 20)),
                (RUNS % ("lost", "infrastructure"), "_x55 2+0x{n}"),
            )
        },
        at_s=57 * 60,
    ),
    "half of all experiments": Case(
        series={
            name.replace("standard", "experiment"): values
            for name, values in (
                (RUNS % ("succeeded", ""), after(55, 8)),
                (RUNS % ("lost", "infrastructure"), "_x55 8+0x{n}"),
            )
        },
        at_s=57 * 60,
        fires="~RunBudgetBurns/experiment",
    ),
    "what is nothing to a standard pipeline, of a critical one": Case(
        series={
            name.replace("standard", job_class): values
            for job_class in ("standard", "critical")
            for name, values in (
                (RUNS % ("succeeded", ""), "0+180x{n}"),
                (RUNS % ("lost", "infrastructure"), "0+1x{n}"),
            )
        },
        at_s=2 * DAY_S,
        step_s=1800,
        fires="~RunBudgetBurns/critical",
    ),
    "windows that close too soon": Case(
        series={WINDOWS % ("standard", "done"): after(55, 6), WINDOWS % ("standard", "cut"): after(55, 6)},
        at_s=57 * 60,
        fires="~WindowBudgetBurns/standard",
    ),
    "all windows of a critical one": Case(
        series={WINDOWS % ("critical", "done"): after(55, 1), WINDOWS % ("critical", "cut"): after(55, 11)},
        at_s=57 * 60,
        fires="WindowBudgetBurns/critical ~WindowBudgetBurns/critical",
    ),
    "windows of experiments": Case(
        series={WINDOWS % ("experiment", "done"): after(55, 1), WINDOWS % ("experiment", "cut"): after(55, 11)},
        at_s=57 * 60,
    ),
    "the same of nine": Case(
        series={RUNS % ("succeeded", ""): after(55, 7), RUNS % ("lost", "infrastructure"): "_x55 2+0x{n}"},
        at_s=57 * 60,
    ),
    "the same, and over since, which leaves a ticket": Case(
        series={RUNS % ("succeeded", ""): after(10, 8), RUNS % ("lost", "infrastructure"): "_x10 2+0x{n}"},
        at_s=3 * 3600,
        fires="~RunBudgetBurns/standard",
    ),
    "a burn by people and data": Case(
        series={
            RUNS % ("succeeded", ""): after(55, 8),
            RUNS % ("failed", "config"): "_x55 9+0x{n}",
            RUNS % ("failed", "contract"): "_x55 9+0x{n}",
            RUNS % ("failed", "data"): "_x55 9+0x{n}",
            RUNS % ("stopped", "window closed"): "_x55 9+0x{n}",
        },
        at_s=57 * 60,
    ),
    "a few failures that are over": Case(
        series={RUNS % ("succeeded", ""): "0+3x{n}", RUNS % ("failed", "oom"): "0+0x5 1+0x5 2+0x{n}"},
        at_s=25 * 3600,
        step_s=3600,
    ),
    "a slow burn that goes on": Case(
        series={RUNS % ("succeeded", ""): "0+24x{n}", RUNS % ("failed", "oom"): "0+1x{n}"},
        at_s=2 * DAY_S,
        step_s=1800,
        fires="~RunBudgetBurns/standard",
    ),
    "one bad checkpoint of three": Case(
        series={VERIFIED % "ok": after(55, 2), VERIFIED % "failed": after(55, 1)}, at_s=57 * 60
    ),
    "bad checkpoints, one of ten": Case(
        series={VERIFIED % "ok": after(55, 18), VERIFIED % "failed": after(55, 2)},
        at_s=57 * 60,
        fires="CheckpointBudgetBurns ~CheckpointBudgetBurns",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_fires_is_what_happened(name: str, tmp_path: Path) -> None:
    assert outcome_of(tmp_path, CASES[name]) == ""


def test_each_alert_fires_in_some_case() -> None:
    words = [word for case in CASES.values() for word in case.fires.split()]
    fired = {(word.removeprefix("~").partition("/")[0], word.startswith("~")) for word in words}
    assert fired == {(alert.name, alert.severity == "ticket") for alert in ALERTS}


@pytest.mark.parametrize(
    ("wrong", "right", "name"),
    [
        ("> 900", "> 9000", "no step"),
        ('outcome="corrupt"', 'outcome="rotten"', "another one"),
        ("or 0 * headway_status_timestamp_seconds", "", "a corrupt checkpoint, the first"),
        (">= 10", ">= 1", "the same of nine"),
        ('job_class="standard"', 'job_class="experiment"', "failures of experiments, of which more may fail"),
        ("unless on (pipeline, job, instance) headway_pipeline_info", "", "and it is an experiment"),
        ("unless on (pipeline, job, instance) headway_pipeline_held == 1", "", "and somebody holds the pipeline"),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_seen(wrong: str, right: str, name: str, tmp_path: Path) -> None:
    text = (SHIPPED / "rules.yaml").read_text()
    assert wrong in text
    (tmp_path / "rules.yaml").write_text(text.replace(wrong, right))
    assert "FAILED" in outcome_of(tmp_path, CASES[name], tmp_path / "rules.yaml")


def test_the_tools_find_nothing_wrong_with_the_shipped_files(tmp_path: Path) -> None:
    done = tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(SHIPPED / "rules.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("prometheus.yaml", "rules.yaml"):
        (tmp_path / name).write_text((SHIPPED / name).read_text())
    (tmp_path / "headway-password").write_text("secret")
    done = tool("promtool", "check", "config", "prometheus.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_limits_that_the_documentation_shows_are_rules(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(block("text", "headway:silence_limit:seconds"))
    done = tool("promtool", "check", "rules", "limits.yaml", folder=tmp_path)
    assert done.returncode == 0 and "1 rules found" in done.stdout, done.stdout + done.stderr


def test_amtool_takes_the_routes_and_each_severity_has_its_receiver(tmp_path: Path) -> None:
    shipped = tool("amtool", "check-config", str(SHIPPED / "alertmanager.yaml"))
    said = shipped.stdout + shipped.stderr
    # What 0.25 does not know is one key, and nothing else.
    assert shipped.returncode == 0 or set(re.findall(r"field (\w+) not found", said)) == {"url_file"}, said
    config = tmp_path / "alertmanager.yaml"
    config.write_text(yaml.safe_dump(alertmanager_config({"pages-url": "http://a/", "tickets-url": "http://b/"})))
    done = tool("amtool", "check-config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    for severity, job_class, receiver in (
        ("page", "standard", "pages"),
        ("page", "critical", "pages"),
        ("ticket", "critical", "tickets"),
        ("page", "experiment", "tickets"),
    ):
        labels = (f"severity={severity}", f"job_class={job_class}", "alertname=RetrainFailed")
        command = ("amtool", "config", "routes", "test", f"--config.file={config}", *labels)
        assert tool(*command).stdout.strip() == receiver
