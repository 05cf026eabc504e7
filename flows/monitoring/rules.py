"""The rules of Prometheus: `python -m headway.flows.monitoring.rules > deployments/monitoring/rules.yaml`. Pure.

Totals come first. A series of a counter appears with its first event, and Prometheus sees no increase in a series that
begins: each total is 0 from the first look at a workspace on. They are summed before they are compared over time, for
they are read from records, which outlive the exporter: no restart sets one back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, get_args

import yaml

from headway.flows.accounts.goodput import FORWARD
from headway.flows.accounts.objectives import OBJECTIVES, ORDERLY, TRAINING
from headway.flows.monitoring.alerts import ALERTS, Alert, Group
from headway.flows.monitoring.burn_rates import bad_share, windows

RUNBOOKS = "operations/alerts.html"
"""Below the address of the documentation, which each site has to say for itself."""
EVERY: dict[Group, str] = {"now": "2s", "state": "15s", "days": "1m"}
"""How often the rules of a group are looked at."""
SUCCEEDED = 'outcome="succeeded"'
_SEEN = "0 * headway_status_timestamp_seconds"

_HEADER = """\
# Made by `python -m headway.flows.monitoring.rules`: what is edited here is lost. What each alert means and asks for is
# in docs/operations/alerts.md. The address of the documentation is the external label `runbooks`: see prometheus.yaml.
"""


def _one_of(*values: str) -> str:
    return "|".join(values)


def _total(name: str, expr: str, level: str = "workspace") -> dict[str, Any]:
    return {"record": f"{level}:{name}:total", "expr": expr}


def _of_workspace(family: str, matchers: str, *labels: str) -> str:
    selector = f"{family}{{{matchers}}}" if matchers else family
    return f"sum without ({', '.join(labels)}) ({selector})\nor {_SEEN}"


def _of_pipelines(outcomes: str) -> str:
    return (
        f'sum without (job_class, outcome, cause) (train_runs_total{{outcome=~"{outcomes}"}})\n'
        "or 0 * sum without (job_class, outcome, cause) (train_runs_total)"
    )


def _of_classes(family: str, matchers: str, *labels: str) -> str:
    summed = f"sum without ({', '.join(labels)})"
    return f"{summed} ({family}{{{matchers}}})\nor 0 * {summed} ({family})"


def _totals_now() -> Iterator[dict[str, Any]]:
    corrupt = 'op="verify", outcome="corrupt"'
    yield _total("checkpoints_corrupt", _of_workspace("train_checkpoint_total", corrupt, "op", "outcome"))


def _totals_of_state() -> Iterator[dict[str, Any]]:
    yield _total("runs_failed", _of_pipelines("failed|lost"), "pipeline")
    yield _total("runs_succeeded", _of_pipelines("succeeded"), "pipeline")
    yield {
        "record": "workspace:runs_at_work:count",
        "expr": f"count without (pipeline, flow_run, run, stage) (train_run_info == 1)\nor {_SEEN}",
    }
    # A family without labels is there from the first look on.
    yield _total("nonfinite_steps", "train_nonfinite_total")


def _totals_of_days() -> Iterator[dict[str, Any]]:
    runs = ("train_runs_total", "pipeline", "outcome", "cause")
    bad = f'outcome=~"failed|lost", cause!~"{_one_of(*ORDERLY)}"'
    yield _total("runs_bad", _of_classes(runs[0], bad, *runs[1:]), "class")
    yield _total("runs", f"class:runs_bad:total\n+ ({_of_classes(runs[0], SUCCEEDED, *runs[1:])})", "class")
    in_windows = ("train_window_runs_total", "pipeline", "outcome")
    yield _total("windows_bad", _of_classes(in_windows[0], 'outcome="cut"', *in_windows[1:]), "class")
    done = _of_classes(in_windows[0], 'outcome="done"', *in_windows[1:])
    yield _total("windows", f"class:windows_bad:total\n+ ({done})", "class")
    verified = ("train_checkpoint_total", "op", "outcome")
    yield _total("checkpoints_bad", _of_workspace(verified[0], 'op="verify", outcome!="ok"', *verified[1:]))
    yield _total("checkpoints", _of_workspace(verified[0], 'op="verify"', *verified[1:]))
    yield _total("interruptions", _of_workspace("train_interruptions_total", 'cause!="stopped"', "cause"))
    seconds = "train_device_seconds_total"
    yield _total("effective_device_seconds", _of_workspace(seconds, f'state=~"{_one_of(*FORWARD)}"', "state"))
    yield _total("training_device_seconds", _of_workspace(seconds, f'state=~"{_one_of(*TRAINING)}"', "state"))
    yield _total("cost_usd", _of_workspace("train_cost_usd_total", "", "use"))
    yield {"record": "workspace:cost_usd:day", "expr": "increase(workspace:cost_usd:total[1d])"}
    # Those of a class have its label, and are recorded once for all classes.
    for objective in {each.key: each for each in OBJECTIVES}.values():
        total = f"{objective.level}:{objective.key}"
        for window in windows():
            yield {
                "record": bad_share(objective, window),
                "expr": f"increase({total}_bad:total[{window}])\n/ (increase({total}:total[{window}]) > 0)",
            }


_TOTALS = {"now": _totals_now, "state": _totals_of_state, "days": _totals_of_days}


def runbook(name: str) -> str:
    """The address of an alert's section."""
    return f"{{{{ $externalLabels.runbooks }}}}/{RUNBOOKS}#{name.lower()}"


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.lasts} if alert.lasts != "0s" else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": runbook(alert.name),
        },
    }


def groups() -> list[dict[str, Any]]:
    """Of recording and alerting rules; within a group those that are named come before those that name them."""
    return [
        {
            "name": f"headway-{group}",
            "interval": EVERY[group],
            "rules": [*_TOTALS[group](), *(_rule(alert) for alert in ALERTS if alert.group == group)],
        }
        for group in get_args(Group)
    ]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def rendered() -> str:
    """The file, as it is shipped."""
    return _HEADER + yaml.dump({"groups": groups()}, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(rendered())
