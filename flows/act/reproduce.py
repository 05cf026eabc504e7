"""`headway reproduce`: a registered version trained again, beside all that is kept, and its bits compared."""

from __future__ import annotations

import contextlib
import uuid

from pydantic import BaseModel
from rich.table import Table

from headway.data_contracts.store.errors import HeadwayError, NotReproduced
from headway.data_contracts.store.full_disk import naming_a_full_disk
from headway.data_contracts.store.leftovers import at_work_in, scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.types.report_text import count
from headway.flows.console.commands import command_name, workspace_option
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.report.terminal import JsonLines, Terminal
from headway.tasks.core.context import RunContext
from headway.tasks.prove.reproduce import EnvironmentChange, Reproduction, prepare, reproduce
from headway.tasks.registry import model_refs
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger import Ledger

SHOWN_TENSORS = 8
PROMISE = "equal bits are promised on the same kind of device and processor, library versions and number of threads"


class ReproductionReport(BaseModel):
    """The last line of `--json`."""

    model: str
    version: str
    agrees: bool
    is_promised: bool
    """Whether they had to agree: nothing of the environment differs, and no disturbance of the run moved its bits."""
    reproduction: Reproduction


def reproduce_model(model_uri: str, workspace_uri: str, *, again: bool, as_json: bool) -> ReproductionReport:
    """Train a registered version again, tell what came of it, and return that.

    Args:
        again: forget an earlier reproduction of it, instead of finding or continuing it.

    Raises:
        NotReproduced: it came to other bits; reported before.
        ConfigError: no such model, or its configuration is not understood.
        IntegrityError: something that it was made from is gone or altered.
        TrainingFailed, RunStopped, EnvironmentProblem: as a retrain.
    """
    workspace = Workspace.existing(workspace_uri)
    name, version, registration = model_refs.resolve(workspace, model_uri)
    message = f"{name} version {version}"
    view = JsonLines() if as_json else Terminal()
    with (
        naming_a_full_disk(str(workspace.local_root)),
        at_work_in(workspace.local_root, workspace.local_path("sessions")),  # nothing that is read is cleaned away
        scratch_folder("headway-reproduce-") as scratch,
        contextlib.closing(Ledger(scratch / "ledger.jsonl", process="flow")) as ledger,
    ):
        ledger.listeners.append(view)
        digests = DigestCache(workspace.local_path("digest-cache.json"))
        context = RunContext(
            pipeline=name,
            workspace=workspace,
            base=scratch,
            ledger=ledger,
            digests=digests,
            scratch=scratch,
            budget_scope=str(uuid.uuid4()),
            continued_by=f"{command_name()} reproduce {model_uri}{workspace_option(workspace_uri)}",
        )
        trial = prepare(context, registration, LaunchSpec(), again=again)
        with contextlib.suppress(OSError, HeadwayError):
            digests.save()
        ledger.event(
            "reproduce.begin", message=f"{message}, {count(trial.training.max_steps, 'step')}, in {trial.folder}"
        )
        disk = f"up to {trial.needed_bytes / 1e6:,.1f} MB for checkpoints, {trial.free_bytes / 1e6:,.0f} MB are free"
        ledger.event("reproduce.disk", message=disk)
        for change in trial.changed:
            ledger.event("reproduce.changed", message=f"{_words(change)}: its bits may differ")
        made = reproduce(context, trial)
    report = ReproductionReport(
        model=name, version=version, agrees=made.agrees, is_promised=made.is_promised, reproduction=made
    )
    if isinstance(view, JsonLines):
        view({"event": "reproduction", **report.model_dump(mode="json")})
    else:
        print_reproduction(report)
    if not report.agrees:
        raise NotReproduced(
            f"{message} was trained again and came to other bits.", where=made.folder, advice=_advice(made)
        )
    return report


def _advice(made: Reproduction) -> str:
    if made.inexact:
        return f"The registered weights are not an undisturbed run's: {made.inexact}."
    if made.changed:
        return (
            f"That breaks no promise: {PROMISE}, and here {', '.join(change.what for change in made.changed)} differ."
        )
    return (
        "Nothing that the checkpoint records differs. So the recipe reads something that is no part of the run, like "
        "the clock, or the machine errs (--again tells whether it repeats), or it is a defect of Headway's."
    )


def print_reproduction(report: ReproductionReport) -> None:
    console, made = plain_console(), report.reproduction
    verdict = "every bit agrees" if report.agrees else "other bits"
    console.print()
    step = f", trained again to step {made.step:,}: {verdict}"
    console.print(headed(f"{report.model} version {report.version}", step))
    console.print(f"  tensors      {made.num_tensors - len(made.tensors)} of {made.num_tensors} agree")
    for apart in made.tensors[:SHOWN_TENSORS]:
        largest = "another shape or type" if apart.largest is None else f"by up to {apart.largest:.3g}"
        console.print(f"    {apart.tensor}: {apart.num_differing:,} of {apart.num_values:,} values differ, {largest}")
    if len(made.tensors) > SHOWN_TENSORS:
        console.print(f"    and {len(made.tensors) - SHOWN_TENSORS} more")
    for figure in made.figures:
        same = "agrees" if figure.agrees else f"now {figure.reproduced!r}"
        console.print(f"  {figure.figure:<12} {figure.registered!r} registered, {same}")
    if not made.figures:
        console.print("  figures      not compared: the registered report does not say which examples it is of")
    if made.first_step_apart is not None:
        console.print(f"  loss         differs from step {made.first_step_apart:,} on")
    if made.changed:
        table = Table(box=None, padding=(0, 2), show_header=False)
        for change in made.changed:
            table.add_row(change.what, change.registered, f"here {change.here}")
        console.print("  environment  differs:")
        print_table(console, table)
    if made.inexact:
        console.print(f"  registered   not an undisturbed run's bits: {made.inexact}")
    if not report.is_promised:
        console.print(f"  promise      none here: {PROMISE}")
    console.print(f"  kept in      {made.folder}")


def _words(change: EnvironmentChange) -> str:
    return f"{change.what} was {change.registered}, here {change.here}"
