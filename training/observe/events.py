"""Every event of the ledger, with its fields: what metrics and reports may be made from.

`docs/architecture/events.md` is made of it by `python -m docs.architecture.events`. Tests hold it against every line
that records an event, and against the ledgers of whole retrains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERY = frozenset({"event", "unix_s"})
OF_PROCESS = frozenset({"process", "flow_run", "rank", "node", "attempt", "job", "restarts", "run", "trial"})
"""Whose it is: what a process says with each of its events, and what a flow adds to those that it takes over."""
OF_SPAN = frozenset({"duration_s", "outcome"})
BEGIN = ".begin"
"""After a span's name: it has started, with the fields that are known then."""


@dataclass(frozen=True, slots=True)
class Declared:
    what: str
    fields: frozenset[str] = frozenset()
    """Besides those that every event may have."""
    is_span: bool = False
    """It took from `unix_s` for `duration_s`; `outcome` is `ok`, or the class of an error."""
    has_more: bool = False
    """Fields of a model of its own follow, which is named in `what`."""


def _at(what: str, fields: str = "", *, has_more: bool = False) -> Declared:
    return Declared(what, frozenset(fields.split()), has_more=has_more)


def _span(what: str, fields: str = "") -> Declared:
    return Declared(what, frozenset(fields.split()), is_span=True)


_TRAFFIC = "communication_s sent_bytes traffic"
_STEP = (
    "step window outcome loss lr grad_norm tokens duration_s data_s forward_s backward_s sync_s staging_s optimizer_s "
    f"memory_bytes mfu gradient_noise_scale batch_rows relative_share staleness ends_round {_TRAFFIC}"
)
_STAGES = (
    *("snapshot", "validate", "fit", "shard", "launch", "rung", "verify", "score", "finalists", "folds", "evaluate"),
    "register",
)

EVENTS: Mapping[str, Declared] = {
    # A flow run.
    "flow.begin": _at(
        "A flow run begins.",
        "pipeline owner job_class note in_window started_unix_s host pid start_ticks stop traceparent",
    ),
    "flow.end": _at("It has ended, however it did."),
    "flow.stopped": _at("It was stopped, and may be continued.", "reason message continued_by"),
    "flow.failed": _at("It failed.", "error message"),
    "flow.card": _at("The failure card; fields of `FailureCard`.", has_more=True),
    "start": _span("From the command to the flow's first line."),
    "end": _span("From the last stage to the flow's last line."),
    "prefect": _span("What Prefect does beside a task.", "task"),
    "task": _span("A task, as Prefect shows it.", "task"),
    "check": _span("Contract and recipe are looked at before anything is made."),
    "recipe.untried": _at("No step could be tried beforehand.", "message"),
    "worker.lost": _at("The Prefect worker died, and the flow ends with it.", "message"),
    "pipeline.starving": _at("Too many windows in a row closed before a run was finished.", "pipeline windows message"),
    # Stages.
    **{f"stage.{stage}": _span(f"The stage `{stage}`: found or made.", "shown found") for stage in _STAGES},
    "stage.damaged": _at("A record, or what it names, is damaged: it is made again.", "stage message"),
    "snapshot.read": _span("Files are hashed and counted."),
    "validate.table": _span("Rows are brought into the form that is checked."),
    "validate.expectations": _span("The contract is evaluated.", "known_files"),
    "validate.report": _span("The contract's page is written."),
    "validate.verdicts": _at(
        "What the contract says of the data: rows kept and left out, rules that do not hold, drift.",
        "num_rows num_quarantined num_broken broken drift",
    ),
    "validate.label_leak": _at("A column tells the label.", "message"),
    "validate.accepted_unreadable": _at("What was accepted before cannot be read.", "message"),
    "fit.sample": _at("The encoder is fitted on a sample.", "message"),
    "shard.split": _span("Which rows are held out.", "shown found"),
    "evaluate.champion_shards": _span("Shards of today's data for the champion's encoder.", "shown found"),
    "folds.fit": _span("The encoder is fitted on all rows but a fold's.", "shown found"),
    "folds.shard": _span("Shards that hold a fold out.", "shown found"),
    "folds.score": _span("A fold's model is scored on its fold.", "shown found"),
    "evaluate.on_heldout": _at("The champion has no fold models like these, so that few rows judge.", "message"),
    "shard.group": _at("A group's shards are made.", "group split rows source_rows"),
    "shard.excluded": _at("Rows were left out by rule.", "message rows"),
    "shard.without_rows": _at("Values have no rows in a split.", "message values"),
    "evaluate.baseline": _span("The baseline is scored."),
    "evaluate.model": _span("The model is scored."),
    "evaluate.details": _span("What the report shows beside the scores is made: outputs, importances, continuations."),
    "evaluate.slices": _span("Figures are made for each slice."),
    "evaluate.parts": _span("The held-out examples are parted.", "shown found"),
    "evaluate.xz": _span("A compressor is the yardstick of text."),
    "evaluate.no_xz": _at("There is none for these data.", "message"),
    "champion.damaged": _at("The champion cannot be scored.", "message"),
    "export.graph": _span("The model's graph is exported."),
    "export.weights": _span("Its weights are written."),
    "proof": _span("A checkpoint reproduces the loss it was saved with."),
    "register.export": _span("What is registered is made."),
    "register.mlflow": _span("The model is logged to MLflow."),
    "register.wait": _span("MLflow is waited for."),
    "version.withdrawn": _at("A version was registered twice; this one goes.", "model version instead"),
    "alias.moved": _at("An alias was moved in MLflow by somebody else.", "message"),
    "promotion.lost": _at("Another retrain moved the champion first.", "model alias"),
    # A run, and who owns it.
    "tuned": _at("What `headway tune` measured is taken, or why it is not.", "message"),
    "tune.measured": _at("A value was measured, or one of its rounds.", "message"),
    "run.named": _at("The run that this flow run is at, found or to be trained.", "run"),
    "run.folder": _at("It is trained here.", "run path max_attempts max_steps targets steps_per_epoch"),
    "run.not_continued": _at("An unfinished run is left for another one.", "message"),
    "run.carried_on": _at("A run that a window cut is continued.", "message"),
    "run.went_back": _at("A run goes back to an earlier checkpoint.", "run step quarantined by why message"),
    "run.wait": _span("Another process has the run, and is waited for.", "run"),
    "run.waiting": _at("How far that one is.", "run owner message"),
    "run.leased_remotely": _at("Another machine claimed the run; whether it lives is watched.", "run message"),
    "run.lost": _at("Another machine has taken the run over.", "run message"),
    "run.stopped": _at("A run was stopped in order.", "reason message continued_by"),
    "run.interrupted": _at("The flow was interrupted; what was kept.", "run step message"),
    "run.open": _span("A rank reads the run's documents."),
    "run.already_finished": _at("Nothing is left to train."),
    "run.inexact": _at("From here on the bits are not an undisturbed run's.", "what"),
    "batch": _at("The batch, in words.", "message"),
    "length": _at("How long the run is, in words.", "message"),
    "learning_rate": _at("The schedule, in words.", "message"),
    "start_from": _at("The checkpoint that a run starts from.", "message checkpoint"),
    "trial": _at("A trial begins, or what it came to.", "message trial settings cause"),
    "search.page": _at("Where the page of a search lies while it goes on.", "message"),
    "search.started": _at("A search begins by its schedule, or is continued.", "message"),
    "search.cut": _at("A window's end stops a search, which the next one continues.", "message"),
    "search.ended": _at("A search by its schedule came to its end.", "message"),
    "search.kept": _at("A search kept settings that the pipeline file does not say yet.", "message"),
    "rung": _at(
        "The trials of a round are ranked at a step, and which of them go on.",
        "message step trials values greater_is_better promoted steps_spent",
    ),
    "gang.again": _at("A run that lost its ranks beside others begins again, with a place less for all.", "message"),
    "gang.pace": _at("How long a step took of runs that trained side by side, and alone.", "message"),
    "devices.wait": _span("Devices are waited for.", "devices"),
    "devices.waiting": _at("By whom they are taken.", "message"),
    "devices.forgotten": _at("Slots that nobody gave back.", "message"),
    "reproduce.begin": _at("A version is trained again.", "message"),
    "reproduce.changed": _at("What is other than then.", "message"),
    "reproduce.disk": _at("What it needs of the disk.", "message"),
    # Attempts.
    "launch.lease": _span("A run is claimed among machines."),
    "launch.freeze": _span("Code and environment are frozen."),
    "launch.reattach": _span("What an earlier owner left is ended."),
    "launch.submit": _span("A job is queued."),
    "launch.follow": _span("A job is watched.", "job"),
    "attempt": _span(
        "An attempt; its record in `attempts.jsonl` is a moment.",
        "attempt folder result cause what step scope state failure excluded continued_by start_unix_s end_unix_s",
    ),
    "attempt.begin": _at("Its record begins.", "attempt scope start_unix_s continued_by folder"),
    "attempt.gather": _span("Hosts that are still to come are waited for."),
    "attempt.muster": _span("Hosts are asked."),
    "attempt.preflight": _span("Hosts are looked at."),
    "attempt.start": _span("From the first process until all ranks are up.", "attempt"),
    "attempt.stop": _at("Ranks are asked to keep a checkpoint and end.", "attempt reason"),
    "attempt.overdue": _at("A deadline passed; the ranks that are late.", "attempt what ranks"),
    "attempt.deadline": _at("What a step may take, as measured.", "attempt what p50_s p99_s num_steps deadline_s"),
    "attempt.tight_deadline": _at("The configured deadline is tight.", "attempt what p50_s p99_s num_steps"),
    "attempt.ending": _span("From the first word to end until nothing is left.", "attempt"),
    "attempt.retry": _at("Another attempt follows.", "attempt cause what wait_s"),
    "attempt.backoff": _span("It is waited for."),
    "host.missing": _at("Hosts did not answer.", "attempt what"),
    "host.unreachable": _at("A host is left alone; what runs there ends by its lease.", "attempt host what"),
    "host.excluded": _at("The run continues without a machine.", "attempt host what"),
    "rank.slow": _at(
        "A rank keeps the others waiting; fields of `Straggler`. `one_host`: all ranks share one machine.",
        "attempt host what one_host rank part excess_s step_s own_s others_s score balanced_s",
    ),
    "rank.lost": _at("Ranks or nodes are gone.", "attempt what command ranks"),
    "ranks.stopped": _at("Ranks of a node ended in order.", "attempt what command"),
    "job.submitted": _at("A job is queued.", "job message"),
    "job.found": _at("A job is watched again.", "job message"),
    "job.state": _at("What the scheduler says of it.", "job message restarts"),
    "job.again": _at("Another job continues.", "message"),
    "job.stop": _at("A job is asked to end.", "message"),
    "job.unknown": _at("The scheduler gives no answer.", "message"),
    "job.begin": _at("A job's supervisor begins.", "message"),
    "job.end": _at("How its order ended.", "state what"),
    "job.notified": _at("The scheduler gave notice.", "message state"),
    "job.room": _at("A machine is going away, and the run continues.", "message"),
    "job.requeue": _at("Another start of the job continues.", "message"),
    "job.not_requeued": _at("None will.", "message"),
    "checkpoints.fetch": _span("The newest checkpoint comes here.", "step"),
    "checkpoints.publish": _span("What is not published yet is."),
    "checkpoints.unpublished": _at("It could not be.", "message"),
    "checkpoint.published": _at("A checkpoint lies in the store.", "step size_bytes took_s"),
    "checkpoint.damaged": _at("One is damaged, here or there.", "step message"),
    # A node.
    "agent.begin": _at("A guard has started its agent.", "pid"),
    "agent.stop": _at("A guard stops its agent.", "why grace_s"),
    "agent.end": _at("A guard's last word.", "exit why swept stop_s"),
    # A rank.
    "rank.start": _at("The process began; `is_forked`: with torch imported already.", "pid is_forked"),
    "rank.imports": _span("Until all is imported."),
    "rank.armed": _at("It dies with its owner from now on."),
    "rank.done": _at("Its work is done."),
    "rank.stopped": _at("It ended in order before that.", "cause error"),
    "rank.failed": _at("It failed.", "cause error"),
    "rendezvous": _span("Ranks find each other."),
    "data.open": _span("Shards are opened, and verified."),
    "restore": _span("State is restored, or initialized.", f"step quarantined {_TRAFFIC}"),
    "restore.inexact": _at("On another kind of device than it was saved on.", "changed what"),
    "model": _at(
        "What a step's figures stand on.",
        "world_size num_stages has_whole_model num_parameters flops_per_token peak_flops_per_s device",
    ),
    "step": _at("A step, whose parts make up its duration; fields of `StepRecord`.", _STEP),
    "step.excluded": _at("A batch that a guard left out.", _STEP),
    "steps": _at("The steps of a flow run; fields of `StepSummary`.", has_more=True),
    "batch.grown": _at("From this step on the batch has more rows.", "step window rows num_micro_batches what"),
    "shares.given": _at("Shares of a batch that `launch.speeds` comes to.", "shares what"),
    "shares.moved": _at(
        "From this step on ranks have other shares of a batch, as their micro-batches take them.",
        "step shares before_s after_s what",
    ),
    "asynchronous.round": _at(
        "Ranks that do not wait for each other met; of each update in turn its batch, the updates that its weights "
        "had, and the rank that worked on it.",
        "step arrivals",
    ),
    "federated.round": _at(
        "A federated round ended: whom it drew, how far each went, and whose answer counts.",
        "step round clients num_rows distances answered lost refused is_void what",
    ),
    "guard": _at(
        "Loss or gradients are out of line, and what follows.",
        "step window alarm action loss grad_norm what count first_step",
    ),
    "heartbeat": _at("Work without steps makes progress.", "what num_done"),
    "checkpoint": _span("Steps wait for a checkpoint's copy.", f"step size_bytes {_TRAFFIC}"),
    "restore.best": _span("The checkpoint that validated best becomes the model.", "step quarantined"),
    "validation": _span(
        "The model is validated, and what that came to.",
        f"step metric value num_rows best_step stale patience {_TRAFFIC}",
    ),
    "checkpoint.durable": _at("It is durable.", "step size_bytes durable_s"),
    "checkpoint.quarantined": _at("One is corrupt, and quarantined.", "checkpoint problem what"),
    "profile": _span("A trace is taken.", "path last_step"),
    "wind_down": _span("What is still written behind the last step."),
    "result": _span("The run's result is made.", _TRAFFIC),
    "result.check": _span("Whether there is one is looked at."),
    "teardown": _span("Ranks let go of each other."),
    # The ledger itself.
    "ledger.dropped": _at("The disk was full for longer than memory lasts.", "num_events"),
}


def undeclared(event: Mapping[str, object]) -> str:
    """What an event says that is not declared; empty where all of it is."""
    name = str(event.get("event", ""))
    declared, is_begin = EVENTS.get(name), False
    if declared is None and name.endswith(BEGIN):
        declared, is_begin = EVENTS.get(name.removesuffix(BEGIN)), True
    if declared is None or (is_begin and not declared.is_span):
        return f"event {name}"
    if declared.has_more:
        return ""
    known = declared.fields | EVERY | OF_PROCESS | (OF_SPAN if declared.is_span and not is_begin else frozenset())
    return f"{name}: {', '.join(sorted(event.keys() - known))}" if event.keys() - known else ""
