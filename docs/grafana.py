"""The Grafana boards of `deployments/monitoring/`, made by `python -m docs.grafana`: executive, on call, debug.

Each panel is a title, what it says, its unit and its expressions, which name families of `flows/monitoring/families.py`
and totals of `rules.yaml` alone. `tests/cluster/test_grafana.py` asks a live Prometheus for each.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grafana_foundation_sdk.builders import dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from headway.flows.accounts.objectives import CLASS_OBJECTIVES

FOLDER = Path(__file__).resolve().parents[1] / "deployments" / "monitoring"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
OF = '{pipeline=~"$pipeline"}'
SUCCEEDED = '{outcome="succeeded", pipeline=~"$pipeline"}'
WIDTH, HEIGHT = 12, 8
Kind = Literal["lines", "stacked", "figure", "heat"]


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    says: str
    unit: str
    kind: Kind = "lines"
    queries: Sequence[tuple[str, str]]
    """Expression and legend of each."""


@dataclass(frozen=True, kw_only=True)
class Board:
    name: str
    title: str
    since: str
    """How far it looks back at first."""
    rows: Sequence[tuple[str, Sequence[Panel]]]


def _objectives(name: Literal["success", "in_window"]) -> str:
    """In words, by job class."""
    by_class = ((job_class, getattr(each, name)) for job_class, each in CLASS_OBJECTIVES.items())
    return ", ".join(f"{100 * target:g} % {job_class}" for job_class, target in by_class if target is not None)


def _quantiles(family: str, matchers: str, window: str, by: str = "") -> list[tuple[str, str]]:
    group = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        (
            f"histogram_quantile({share}, sum by ({group}) (increase({family}_bucket{matchers}[{window}])))",
            f"{legend}p{100 * share:.0f}",
        )
        for share in (0.5, 0.95, 0.99)
    ]


EXECUTIVE = Board(
    name="executive",
    title="Headway: executive",
    since="now-30d",
    rows=(
        (
            "Do retrains succeed?",
            (
                Panel(
                    title="Retrains by outcome",
                    says="Flow runs that ended within a day.",
                    unit="short",
                    kind="stacked",
                    queries=[(f"sum by (outcome) (increase(train_runs_total{OF}[1d]))", "{{outcome}}")],
                ),
                Panel(
                    title="Success by job class, without failures that people or data caused",
                    says=f"Of 30 days. The objectives are {_objectives('success')}.",
                    unit="percentunit",
                    kind="figure",
                    queries=[("1 - class:runs_bad:share_30d", "{{job_class}} {{instance}}")],
                ),
                Panel(
                    title="Done before their window closed, by job class",
                    says=f"Of 30 days. The objectives are {_objectives('in_window')}.",
                    unit="percentunit",
                    kind="figure",
                    queries=[("1 - class:windows_bad:share_30d", "{{job_class}} {{instance}}")],
                ),
                Panel(
                    title="Time to complete",
                    says="Wall time of flow runs that succeeded within a week, by pipeline.",
                    unit="s",
                    queries=_quantiles("train_run_duration_seconds", SUCCEEDED, "7d", "pipeline")[:2],
                ),
                Panel(
                    title="Converged: the share of retrains that ended with a new version",
                    says="Flow runs that succeeded, over all that ended within a week.",
                    unit="percentunit",
                    queries=[
                        (
                            (
                                f"sum by (pipeline) (increase(train_runs_total{SUCCEEDED}[7d])) "
                                f"/ (sum by (pipeline) (increase(train_runs_total{OF}[7d])) > 0)"
                            ),
                            "{{pipeline}}",
                        )
                    ],
                ),
            ),
        ),
        (
            "What does it cost?",
            (
                Panel(
                    title="Spend a day",
                    says="By the prices of the exporter's profile: productive, wasted, and overhead.",
                    unit="currencyUSD",
                    kind="stacked",
                    queries=[("sum by (use) (increase(train_cost_usd_total[1d]))", "{{use}}")],
                ),
                Panel(
                    title="What device time was good for",
                    says="Device-seconds a day, by state.",
                    unit="s",
                    kind="stacked",
                    queries=[("sum by (state) (increase(train_device_seconds_total[1d])) > 0", "{{state}}")],
                ),
                Panel(
                    title="Effective training time",
                    says="Of each pipeline's newest run. The objective is 95 %.",
                    unit="percentunit",
                    queries=[(f"train_run_ettr_ratio{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Time of an epoch",
                    says="Of each pipeline's newest run: its steps, and what checkpoints kept them waiting.",
                    unit="s",
                    queries=[(f"train_epoch_duration_seconds{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Scaling efficiency",
                    says="Tokens a device-second, over those at the pipeline's fewest devices. 1: nothing is lost.",
                    unit="percentunit",
                    queries=[(f"train_scaling_efficiency_ratio{OF}", "{{pipeline}}, {{devices}} devices")],
                ),
                Panel(
                    title="Energy a day",
                    says="By the declared power of devices: a model, no measurement.",
                    unit="joule",
                    queries=[("sum by (source) (increase(train_energy_joules_total[1d]))", "{{source}}")],
                ),
            ),
        ),
        (
            "What serves?",
            (
                Panel(
                    title="Age of champions",
                    says="Since each became it.",
                    unit="s",
                    queries=[("time() - headway_champion_since_timestamp_seconds", "{{model}}")],
                ),
                Panel(
                    title="Data: drift beside what was accepted last",
                    says="Population stability index by rule; above 0.25 a distribution has moved.",
                    unit="short",
                    queries=[(f"headway_contract_drift_psi{OF}", "{{pipeline}} {{rule}}")],
                ),
                Panel(
                    title="Data: rules that do not hold",
                    says="Of the newest data that were validated; critical ones refused them.",
                    unit="short",
                    queries=[
                        (f"headway_contract_broken_rules{OF}", "{{pipeline}} {{rule_severity}}"),
                        (f"headway_contract_quarantined_ratio{OF}", "{{pipeline}} left out"),
                    ],
                ),
                Panel(
                    title="Registered versions",
                    says="A line that stays flat is a model that nobody renews.",
                    unit="short",
                    queries=[("headway_model_versions", "{{model}}")],
                ),
            ),
        ),
    ),
)

ON_CALL = Board(
    name="on-call",
    title="Headway: on call",
    since="now-6h",
    rows=(
        (
            "What is wrong?",
            (
                Panel(
                    title="Alerts that fire",
                    says="Their runbooks are linked in each message.",
                    unit="short",
                    kind="stacked",
                    queries=[
                        ('sum by (alertname, severity) (ALERTS{alertstate="firing"})', "{{severity}} {{alertname}}")
                    ],
                ),
                Panel(
                    title="Failed, and no retrain has finished since",
                    says="Seconds since the failure.",
                    unit="s",
                    queries=[
                        (f"time() - headway_retrain_failed_timestamp_seconds{OF}", "{{pipeline}} {{stage}} {{cause}}")
                    ],
                ),
                Panel(
                    title="Since the newest step",
                    says="A run without a step for 15 minutes is a page.",
                    unit="s",
                    queries=[(f"time() - train_run_last_step_timestamp_seconds{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Since the newest retrain that finished",
                    says="Longer than its schedule allows is a page.",
                    unit="s",
                    queries=[(f"time() - headway_retrain_finished_timestamp_seconds{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Since a probe last succeeded",
                    says="Two hours and ten minutes without one, where one is due each hour, is a page.",
                    unit="s",
                    queries=[("time() - headway_probe_last_success_timestamp_seconds", "{{launcher}}")],
                ),
                Panel(
                    title="What the newest probe took",
                    says="And 0 where it failed: a small retrain of made-up data, through every stage.",
                    unit="s",
                    queries=[("headway_probe_duration_seconds * headway_probe_success", "{{launcher}}")],
                ),
            ),
        ),
        (
            "Restarts and checkpoints",
            (
                Panel(
                    title="Interruptions an hour",
                    says="Attempts that ended before their last step, by cause.",
                    unit="short",
                    kind="stacked",
                    queries=[("sum by (cause) (increase(train_interruptions_total[1h])) > 0", "{{cause}}")],
                ),
                Panel(
                    title="Recovery",
                    says="From the last new step before a failure to the next. The objective is a minute.",
                    unit="s",
                    queries=_quantiles("train_recovery_duration_seconds", '{stage="total"}', "1d"),
                ),
                Panel(
                    title="Checkpoints that failed or were corrupt",
                    says="Within an hour, by operation.",
                    unit="short",
                    kind="stacked",
                    queries=[
                        (
                            'sum by (op, outcome) (increase(train_checkpoint_total{outcome!="ok"}[1h]))',
                            "{{op}} {{outcome}}",
                        )
                    ],
                ),
                Panel(
                    title="Age of the newest durable checkpoint",
                    says="What a failure now would cost.",
                    unit="s",
                    queries=[(f"time() - train_checkpoint_last_durable_timestamp_seconds{OF}", "{{pipeline}}")],
                ),
            ),
        ),
        (
            "Machines",
            (
                Panel(
                    title="Free on the workspace's disk",
                    says="Under 2 GB is a page.",
                    unit="bytes",
                    queries=[("headway_workspace_free_bytes", "{{instance}}")],
                ),
                Panel(
                    title="Pressure",
                    says="Share of time that processes waited for a resource.",
                    unit="percentunit",
                    queries=[("rate(train_node_pressure_seconds_total[5m])", "{{node}} {{resource}} {{share}}")],
                ),
                Panel(
                    title="Network",
                    says="Through each interface.",
                    unit="Bps",
                    queries=[("rate(train_node_network_bytes_total[5m])", "{{node}} {{nic}} {{direction}}")],
                ),
                Panel(
                    title="Power of processors and memory",
                    says="By RAPL, where the exporter may read it: as root, on the machine itself.",
                    unit="watt",
                    queries=[("rate(train_node_energy_joules_total[5m])", "{{node}}, {{zone}}")],
                ),
                Panel(
                    title="Memory that can be had",
                    says="And processes that the kernel ended for want of it, within an hour.",
                    unit="bytes",
                    queries=[
                        ("train_node_memory_available_bytes", "{{node}}"),
                        ("increase(train_node_oom_kills_total[1h])", "{{node}} ended"),
                    ],
                ),
            ),
        ),
    ),
)

DEBUG = Board(
    name="debug",
    title="Headway: debug a run",
    since="now-1h",
    rows=(
        (
            "Steps",
            (
                Panel(
                    title="Step time",
                    says="Of rank 0, all of a step.",
                    unit="s",
                    queries=_quantiles("train_step_duration_seconds", '{phase="step"}', "5m"),
                ),
                Panel(
                    title="Where a step's time goes",
                    says="Mean seconds by part: waiting for data, forward, backward, synchronisation, checkpoint copy.",
                    unit="s",
                    kind="stacked",
                    queries=[
                        (
                            (
                                'sum by (phase) (rate(train_step_duration_seconds_sum{phase!="step"}[5m]))'
                                ' / on () group_left () sum (rate(train_step_duration_seconds_count{phase="step"}[5m]))'
                            ),
                            "{{phase}}",
                        )
                    ],
                ),
                Panel(
                    title="Steps by how long they took",
                    says="A second band is a slow kind of step: a save, a straggler, a cold file.",
                    unit="s",
                    kind="heat",
                    queries=[
                        ('sum by (le) (increase(train_step_duration_seconds_bucket{phase="step"}[1m]))', "{{le}}")
                    ],
                ),
                Panel(
                    title="Throughput",
                    says="Tokens or rows a second, and model FLOPs utilisation.",
                    unit="short",
                    queries=[
                        (f"train_tokens_per_second{OF}", "{{pipeline}}"),
                        (f"train_mfu_ratio{OF}", "{{pipeline}} MFU"),
                    ],
                ),
            ),
        ),
        (
            "Ranks and collectives",
            (
                Panel(
                    title="Ranks: seconds since the last sign of life",
                    says="Seen from outside: one that is stopped cannot silence it.",
                    unit="s",
                    kind="heat",
                    queries=[(f"time() - train_rank_heartbeat_timestamp_seconds{OF}", "{{pipeline}} rank {{rank}}")],
                ),
                Panel(
                    title="Ranks: work beside the others",
                    says="Of a step, as a multiple of the other ranks'. They wait for one that is above 1.",
                    unit="short",
                    kind="heat",
                    queries=[(f"train_rank_work_ratio{OF}", "{{pipeline}} rank {{rank}}")],
                ),
                Panel(
                    title="Processes that are stopped or silent",
                    says="`headway status` names the pid.",
                    unit="short",
                    queries=[(f"train_process_problem{OF}", "{{pipeline}} {{role}} {{state}}")],
                ),
                Panel(
                    title="Time in collectives",
                    says="Share of a second that they kept rank 0 busy.",
                    unit="percentunit",
                    queries=[("rate(train_collective_seconds_total[5m])", "{{op}}")],
                ),
                Panel(
                    title="Bytes sent in collectives",
                    says="By rank 0.",
                    unit="Bps",
                    queries=[("rate(train_collective_sent_bytes_total[5m])", "{{op}}")],
                ),
            ),
        ),
        (
            "Devices",
            (
                Panel(
                    title="Devices: time with a kernel",
                    says="Ours or the DCGM exporter's figures. Busy is not useful: model FLOPs utilisation says that.",
                    unit="percentunit",
                    queries=[
                        ("train_device_utilization_ratio", "{{node}} {{device}}"),
                        ("DCGM_FI_DEV_GPU_UTIL / 100", "{{Hostname}} {{gpu}}"),
                    ],
                ),
                Panel(
                    title="Devices: memory in use",
                    says="Of the device, by all its processes.",
                    unit="bytes",
                    queries=[
                        ("train_device_memory_used_bytes", "{{node}} {{device}}"),
                        ("DCGM_FI_DEV_FB_USED * 1048576", "{{Hostname}} {{gpu}}"),
                    ],
                ),
                Panel(
                    title="Devices: power and heat",
                    says="Watts, and degrees Celsius. Clocks are held back when either is at its limit.",
                    unit="short",
                    queries=[
                        ("train_device_power_watts", "{{node}} {{device}} W"),
                        ("train_device_temperature_celsius", "{{node}} {{device}} °C"),
                        ("DCGM_FI_DEV_POWER_USAGE", "{{Hostname}} {{gpu}} W"),
                        ("DCGM_FI_DEV_GPU_TEMP", "{{Hostname}} {{gpu}} °C"),
                    ],
                ),
                Panel(
                    title="Devices: errors and throttling",
                    says="XID and uncorrected memory errors over an hour; 1 while clocks are held back.",
                    unit="short",
                    queries=[
                        ("increase(train_device_xid_errors_total[1h])", "{{node}} {{device}} XID {{xid}}"),
                        (
                            'increase(train_device_ecc_errors_total{kind="uncorrected"}[1h])',
                            "{{node}} {{device}} uncorrected",
                        ),
                        ("max by (node, device, why) (train_device_throttled)", "{{node}} {{device}} {{why}}"),
                        ("DCGM_FI_DEV_XID_ERRORS", "{{Hostname}} {{gpu}} newest XID"),
                    ],
                ),
            ),
        ),
        (
            "Learning, checkpoints, memory",
            (
                Panel(
                    title="Loss",
                    says="Of the newest step.",
                    unit="short",
                    queries=[(f"train_loss{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Gradient norm",
                    says="With steps whose loss is not finite, and batches that a guard left out.",
                    unit="short",
                    queries=[
                        (f"train_grad_norm{OF}", "{{pipeline}}"),
                        ("increase(train_nonfinite_total[5m])", "not finite"),
                        ("increase(train_excluded_batches_total[5m])", "left out"),
                    ],
                ),
                Panel(
                    title="Gradient noise scale",
                    says="Rows that a batch could have before more of them hardly save steps.",
                    unit="short",
                    queries=[(f"train_gradient_noise_scale_rows{OF}", "{{pipeline}}")],
                ),
                Panel(
                    title="Checkpoints",
                    says="95th percentile. `save` keeps steps waiting, `durable` goes on beside them.",
                    unit="s",
                    queries=[
                        (
                            (
                                "histogram_quantile(0.95, sum by (le, op) "
                                "(increase(train_checkpoint_duration_seconds_bucket[1h])))"
                            ),
                            "{{op}}",
                        )
                    ],
                ),
                Panel(
                    title="Ended for want of memory",
                    says="By the kernel, within an hour, and attempts that the cause `oom` ended.",
                    unit="short",
                    queries=[
                        ("increase(train_node_oom_kills_total[1h])", "{{node}}"),
                        ('increase(train_interruptions_total{cause="oom"}[1h])', "attempts"),
                    ],
                ),
            ),
        ),
    ),
)
BOARDS = (EXECUTIVE, ON_CALL, DEBUG)


def _made(panel: Panel, number: int) -> Any:
    made: Any
    match panel.kind:
        case "figure":
            made = stat.Panel().orientation(VizOrientation.AUTO)
        case "heat":
            made = heatmap.Panel()
        case "lines" | "stacked":
            legend = (
                VizLegendOptions()
                .show_legend(True)
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
            )
            made = timeseries.Panel().legend(legend).fill_opacity(30 if panel.kind == "stacked" else 0)
            if panel.kind == "stacked":
                made = made.stacking(StackingConfig().mode(StackingMode.NORMAL))
    made = made.title(panel.title).description(panel.says).unit(panel.unit).datasource(SOURCE).span(WIDTH)
    made = made.height(HEIGHT).id(number)
    for place, (expr, legend_format) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expr).legend_format(legend_format).ref_id(chr(ord("A") + place))
        if panel.kind == "heat" and "{{le}}" in legend_format:
            query = query.format(PromQueryFormat.HEATMAP)
        made = made.with_target(query)
    return made


def rendered(board: Board) -> str:
    """The board as Grafana imports it."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"headway-{board.name}")
        .tags(["headway"])
        .time(board.since, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("source").type("prometheus").label("Prometheus"))
        .with_variable(
            dashboard.QueryVariable("pipeline")
            .datasource(SOURCE)
            .query("label_values(headway_pipeline_info, pipeline)")
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    numbers = itertools.count(1)
    for title, panels in board.rows:
        made = made.with_row(dashboard.Row(title).id(next(numbers)))
        for panel in panels:
            made = made.with_panel(_made(panel, next(numbers)))
    return json.dumps(json.loads(json.dumps(made.build(), cls=JSONEncoder)), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    for each in BOARDS:
        (FOLDER / f"grafana-{each.name}.json").write_text(rendered(each))
