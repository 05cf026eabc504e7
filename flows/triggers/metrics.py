"""How far the data are from those of the last retrain, beside the limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from headway.data_contracts.store.documents import ContractReceipt, Snapshot
from headway.flows.config.triggers import DriftLimit, NewData
from headway.tasks.ownership.pipeline_history import Trigger


class TriggerMetric(BaseModel):
    """One thing that was looked at."""

    trigger: Trigger
    what: str
    value: float | None
    """A share, PSI or JS; None of an event, and where there is nothing to compare with."""
    limit: float | None
    is_over: bool
    detail: str
    event: str = ""
    """The id of the event that it is."""

    @property
    def sentence(self) -> str:
        beside = "" if self.value is None or self.limit is None else f" {self.value:.4g}, over {self.limit:g}"
        return f"{self.what}{beside} ({self.detail})"


def new_data(spec: NewData, now: Snapshot, before: Snapshot | None) -> Iterator[TriggerMetric]:
    """Shares of what came, changed or went since `before`; all of it where nothing was before."""
    for what, limit in (("rows", spec.rows), ("bytes", spec.bytes), ("files", spec.files)):
        if limit is None:
            continue
        if before is None:
            # Over any limit: all of it is new to a pipeline without a model.
            detail = "no retrain on record has finished yet"
            yield TriggerMetric(trigger="new data", what=what, value=None, limit=limit, is_over=True, detail=detail)
            continue
        changed, whole, detail = _counted(what, now, before)
        value = changed / max(whole, 1)
        yield TriggerMetric(
            trigger="new data", what=what, value=value, limit=limit, is_over=value > limit, detail=detail
        )


def _counted(what: str, now: Snapshot, before: Snapshot) -> tuple[int, int, str]:
    """How many are other, of how many, and both in words."""
    if what == "rows":
        return abs(now.num_rows - before.num_rows), before.num_rows, f"{now.num_rows:,} after {before.num_rows:,}"
    known = {file.path: file for file in before.files}
    present = {file.path for file in now.files}
    # An empty file that came is no bytes, and still a file.
    came = [file for file in now.files if file.path not in known]
    changed = [file for file in now.files if file.path in known and known[file.path].sha256 != file.sha256]
    went = [file for file in before.files if file.path not in present]
    if what == "files":
        detail = f"{len(came):,} came, {len(changed):,} changed, {len(went):,} went, of {len(before.files):,}"
        return len(came) + len(changed) + len(went), len(before.files), detail
    sizes = [sum(file.size_bytes for file in files) for files in (came, changed, went)]
    shown = [f"{size / 1e6:,.1f} MB {how}" for size, how in zip(sizes, ("came", "changed", "went"), strict=True)]
    return sum(sizes), before.size_bytes, f"{', '.join(shown)}, of {before.size_bytes / 1e6:,.1f} MB"


def drift(limit: DriftLimit, receipt: ContractReceipt) -> Iterator[TriggerMetric]:
    """What the contract's drift rules measured, against the last accepted data."""
    if receipt.baseline is None:
        detail = "no data were accepted before"
        yield TriggerMetric(trigger="drift", what="drift", value=None, limit=None, is_over=False, detail=detail)
        return
    for suffix, name, most in ((".psi", "PSI", limit.psi), (".js", "JS", limit.js)):
        for metric, value in receipt.metrics.items():
            if most is not None and metric.endswith(suffix):
                what = f"{name} of {metric.removesuffix(suffix)}"
                detail = "against the last accepted data"
                yield TriggerMetric(
                    trigger="drift", what=what, value=value, limit=most, is_over=value > most, detail=detail
                )


def because(figures: Iterable[TriggerMetric]) -> str:
    """Why a retrain is due, for a person."""
    return "; ".join(f"{figure.trigger}: {figure.sentence}" for figure in figures if figure.is_over)
