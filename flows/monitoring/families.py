"""Every family of metrics that `headway metrics` exports: type, labels, meaning. Rules and boards name these alone.

Counters are of flow runs that are over, by their accounts, and of those that go on here, as far as they came. Seconds
by state and recoveries are counted when a flow run is over. No histogram has a label that grows with ranks or runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(help_text: str, *labels: str) -> Family:
    return Family("counter", help_text, labels)


def _gauge(help_text: str, *labels: str) -> Family:
    return Family("gauge", help_text, labels)


def _histogram(help_text: str, *labels: str) -> Family:
    return Family("histogram", help_text, labels)


SEVERE_XIDS = ("48", "64", "74", "79", "95", "119", "120")
"""Errors after which a device is not to be used: memory beyond repair, NVLink, off the bus, its firmware.

Source: NVIDIA, "XID Errors", catalog.
"""

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        # Flow runs that are over.
        "train_runs_total": _counter("Flow runs, by how they ended.", "pipeline", "job_class", "outcome", "cause"),
        "train_window_runs_total": _counter(
            "Flow runs that were started for a window: `done` before it closed, or `cut` by it.",
            "pipeline",
            "job_class",
            "outcome",
        ),
        "train_run_duration_seconds": _histogram("Wall time of flow runs.", "pipeline", "outcome"),
        "train_time_seconds_total": _counter("Wall time of runs' lives, by what it was good for.", "state"),
        "train_device_seconds_total": _counter("The same times devices.", "state"),
        "train_waste_device_seconds_total": _counter("What recoveries took, by cause of the failure.", "cause"),
        "train_recovery_duration_seconds": _histogram(
            "Recoveries, by what they spent their time on; `total` is all of it.", "job_class", "stage"
        ),
        "train_run_ettr_ratio": _gauge("Effective training time ratio of the newest run that was trained.", "pipeline"),
        "train_epoch_duration_seconds": _gauge(
            "An epoch's steps of the newest run that was trained, with what checkpoints kept them waiting.", "pipeline"
        ),
        "train_scaling_efficiency_ratio": _gauge(
            "Tokens a device-second of the newest run on so many devices, over those at the pipeline's fewest.",
            "pipeline",
            "devices",
        ),
        "train_cost_usd_total": _counter(
            "What devices cost while they were held, by the profile's prices and by what for.",
            "use",
        ),
        "train_energy_joules_total": _counter("By the declared power of devices: a model, no measurement.", "source"),
        # Steps.
        "train_steps_total": _counter("Steps made, those made again among them."),
        "train_tokens_total": _counter("Tokens or rows trained on, again for steps made again."),
        "train_nonfinite_total": _counter("Steps whose loss or gradient was not finite, whatever the guard did."),
        "train_excluded_batches_total": _counter("Batches that a guard left out."),
        "train_step_duration_seconds": _histogram("Steps of rank 0, by part; `step` is the whole.", "phase"),
        "train_collective_calls_total": _counter("Collectives of rank 0.", "op"),
        "train_collective_seconds_total": _counter("What they kept it busy.", "op"),
        "train_collective_sent_bytes_total": _counter("What it sent in them.", "op"),
        # Checkpoints, interruptions.
        "train_checkpoint_total": _counter("Checkpoints saved, restored and verified, by outcome.", "op", "outcome"),
        "train_checkpoint_duration_seconds": _histogram(
            "What each took; `save` keeps steps waiting, `durable` goes on beside them.", "op"
        ),
        "train_interruptions_total": _counter("Attempts that ended before their last step.", "cause"),
        "train_resume_total": _counter("Attempts that went on from a checkpoint; `ok` came to a new step.", "outcome"),
        "train_requeues_total": _counter("Starts after a run's first, by who made them.", "reason"),
        # Runs that go on here.
        "train_run_info": _gauge("1: a retrain goes on here.", "pipeline", "flow_run", "run", "stage"),
        "train_run_stage_since_timestamp_seconds": _gauge("When its stage began.", "pipeline"),
        "train_run_attempt": _gauge("Its attempts at training.", "pipeline"),
        "train_run_max_attempts": _gauge("So many it may spend.", "pipeline"),
        "train_run_step": _gauge("Its newest step.", "pipeline"),
        "train_run_max_steps": _gauge("Steps of the whole run.", "pipeline"),
        "train_run_eta_seconds": _gauge("Seconds to the end of its stage.", "pipeline"),
        "train_run_last_step_timestamp_seconds": _gauge("When rank 0 wrote down its newest step.", "pipeline"),
        "train_loss": _gauge("Of the newest step that has one.", "pipeline"),
        "train_grad_norm": _gauge("Of the newest step that has one.", "pipeline"),
        "train_gradient_noise_scale_rows": _gauge(
            "How many rows a batch could have before more hardly save steps, over the newest steps.", "pipeline"
        ),
        "train_mfu_ratio": _gauge("Model FLOPs utilisation of the newest step.", "pipeline"),
        "train_tokens_per_second": _gauge("Over the newest steps.", "pipeline"),
        "train_checkpoint_last_durable_timestamp_seconds": _gauge("When the newest was complete.", "pipeline"),
        "train_rank_heartbeat_timestamp_seconds": _gauge(
            "A rank's last sign of life, seen from outside: one that is stopped cannot silence it.",
            "pipeline",
            "rank",
        ),
        "train_rank_step": _gauge("The newest step that a rank wrote down.", "pipeline", "rank"),
        "train_rank_work_ratio": _gauge(
            "A rank's work in a step over the other ranks', over the newest steps; 1 is as long as theirs.",
            "pipeline",
            "rank",
        ),
        "train_process_problem": _gauge("1: a process of it is stopped, or silent.", "pipeline", "role", "state"),
        # The workspace.
        "headway_status_timestamp_seconds": _gauge("When the workspace was looked at."),
        "headway_look_duration_seconds": _gauge("What the look took."),
        "headway_model_versions": _gauge("Registered versions.", "model"),
        "headway_champion_since_timestamp_seconds": _gauge("When the champion became it.", "model"),
        "headway_model_awaits_approval": _gauge("1: a version waits for a person.", "model"),
        "headway_retrain_finished_timestamp_seconds": _gauge("When the newest that did finished.", "pipeline"),
        "headway_retrain_failed_timestamp_seconds": _gauge(
            "No retrain has finished since.", "pipeline", "stage", "cause"
        ),
        "headway_pipeline_info": _gauge(
            "1: who hears of it, and how urgent its failures are, as of its newest retrain.",
            "pipeline",
            "owner",
            "job_class",
        ),
        "headway_contract_broken_rules": _gauge(
            "Rules that did not hold over the newest data that were validated.", "pipeline", "rule_severity"
        ),
        "headway_contract_quarantined_ratio": _gauge("Of their rows those that were left out.", "pipeline"),
        "headway_contract_drift_psi": _gauge(
            "Population stability index of a column beside the last accepted data; above 0.25 is a shift.",
            "pipeline",
            "rule",
        ),
        "headway_pipeline_held": _gauge("1: a person holds it.", "pipeline"),
        "headway_retrain_asked_timestamp_seconds": _gauge("Asked for, and none has finished.", "pipeline"),
        "headway_windows_cut": _gauge("Windows in a row that closed too soon.", "pipeline"),
        "headway_pipeline_starving": _gauge("1: too many of them.", "pipeline"),
        "headway_scrub_timestamp_seconds": _gauge("When stored files were last read again."),
        "headway_scrub_oldest_check_timestamp_seconds": _gauge(
            "Of the file that nobody read for longest, of those that champions and unfinished runs need."
        ),
        "headway_scrub_unchecked_files": _gauge("Of these files, those that no scrub has read yet."),
        "headway_scrub_damaged_files": _gauge("Of these files, those that are gone or differ from their digest."),
        "headway_probe_success": _gauge("1: the newest probe came to its end; 0: it did not.", "launcher"),
        "headway_probe_timestamp_seconds": _gauge("When the newest probe ended.", "launcher"),
        "headway_probe_last_success_timestamp_seconds": _gauge("When a probe last succeeded.", "launcher"),
        "headway_probe_duration_seconds": _gauge("What the newest probe took.", "launcher"),
        "headway_probe_interval_seconds": _gauge("How often one is due.", "launcher"),
        "headway_workspace_free_bytes": _gauge("Free on the disk of the workspace's local side."),
        # The machine that the exporter runs on.
        "train_node_network_bytes_total": _counter("Through each network interface.", "node", "nic", "direction"),
        "train_node_pressure_seconds_total": _counter(
            "Time that some or all processes waited for a resource (Linux PSI).", "node", "resource", "share"
        ),
        "train_node_memory_available_bytes": _gauge("Memory that can be had without swapping.", "node"),
        "train_node_energy_joules_total": _counter(
            "What processors and memory drew since the exporter's start (RAPL).", "node", "zone"
        ),
        "train_node_oom_kills_total": _counter("Processes that the kernel ended for want of memory.", "node"),
        # Its NVIDIA devices, where it has any.
        "train_node_devices_answer": _gauge("0: the driver did not answer in time.", "node"),
        "train_device_info": _gauge("1: a device is there.", "node", "device", "uuid", "model"),
        "train_device_utilization_ratio": _gauge("Share of the time that a kernel ran.", "node", "device"),
        "train_device_memory_used_bytes": _gauge("Memory of the device in use.", "node", "device"),
        "train_device_memory_size_bytes": _gauge("Memory that it has.", "node", "device"),
        "train_device_temperature_celsius": _gauge("Of its chip.", "node", "device"),
        "train_device_power_watts": _gauge("What it draws.", "node", "device"),
        "train_device_energy_joules_total": _counter("What it drew since its driver started.", "node", "device"),
        "train_device_throttled": _gauge("1: its clocks are held back.", "node", "device", "why"),
        "train_device_ecc_errors_total": _counter("Errors of its memory, in its whole life.", "node", "device", "kind"),
        "train_device_xid_errors_total": _counter(
            "Critical errors that its driver reported since the exporter started.", "node", "device", "xid"
        ),
    }
)
"""By name: `train_*` of training, `headway_*` of what is kept in a workspace."""
