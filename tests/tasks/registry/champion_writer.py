"""Processes that promote and roll back at random beside each other, and say which moves were their own.

    python champion_writer.py WORKSPACE MODEL STORE MOVES GO FOLDER...

One for each FOLDER, which is its home; it writes what it did to a file there, by its number. With an empty STORE it
moves the ref alone; else MLflow's alias follows. All begin once the file GO exists; they are forks, since imports
take seconds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.registry import model_refs
from headway.tasks.registry.champion import set_champion
from headway.tasks.registry.champion_moves import promote, rollback
from headway.tasks.registry.model_versions import model_versions
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.observe.ledger import Event, Ledger

BY = "a writer"


def main() -> None:
    uri, model, store, moves, go, *folders = sys.argv[1:]
    if store:
        import mlflow  # noqa: F401  (not while the others are at it)
    writers = []
    for number, folder in enumerate(folders):
        if (pid := os.fork()) == 0:
            try:
                become_writer(Workspace(uri), model, store, int(moves), number, Path(folder), Path(go))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        writers.append(pid)
    print("ready", flush=True)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in writers))


def become_writer(
    workspace: Workspace, model: str, store: str, moves: int, number: int, folder: Path, go: Path
) -> None:
    os.chdir(folder)
    os.environ |= {"HOME": str(folder), "HEADWAY_LOCAL": str(folder / "local")}
    draw, stray = random.Random(number), []
    context = RunContext(
        pipeline=model,
        workspace=workspace,
        base=folder,
        ledger=Ledger(folder / f"ledger-{number}.jsonl"),
        digests=DigestCache(folder / f"digests-{number}.json"),
        scratch=folder / f"scratch-{number}",
        budget_scope=str(number),
    )

    def heard(event: Event) -> None:
        if event["event"] == "alias.moved":
            stray.append(event["message"])

    context.ledger.listeners.append(heard)
    targets = [entry.target for entry in model_refs.versions(workspace, model)]
    while not go.exists():
        time.sleep(0.001)
    made, lost, history = [], 0, []
    while len(made) < moves:
        try:
            history = refs.history(workspace, model_refs.alias_ref(model, "champion"), history)
            entry = one_move(context, model, store, targets, draw, history)
            made.append([entry.number, entry.detail["from"], entry.target.sha256, entry.detail["how"]])
        except RefConflict:
            lost += 1
    (folder / f"said-{number}.json").write_text(json.dumps({"made": made, "lost": lost, "stray": stray}))


def one_move(
    context: RunContext, model: str, store: str, targets: list[Link], draw: random.Random, history: list[RefEntry]
) -> RefEntry:
    """Raises `RefConflict`: another was first."""
    now, back = history[-1], model_refs.previous_champion(model, history)
    other = draw.choice([target for target in targets if target != now.target])
    goes_back = back is not None and draw.random() < 0.4
    if not store:
        how, target = ("rollback", back) if goes_back and back is not None else ("promote", other)
        detail = {"version": "0", "how": how, "by": BY}
        return set_champion(context, model, target, expected=now, why="race", detail=detail)
    with model_versions(context, model, store) as versions:
        if goes_back and back is not None:
            return rollback(versions, back, expected=now, why="race", by=BY).entry
        try:
            return promote(versions, other, why="race", by=BY, policy=PromotionSpec(), override="race").entry
        except ConfigError as error:
            # Right, if whoever was first has made this one champion since it was chosen; the lock may have been waited
            # for, and in a bucket another host does not even wait.
            since = refs.history(context.workspace, model_refs.alias_ref(model, "champion"), history)[len(history) :]
            if other not in [entry.target for entry in since]:
                raise
            raise RefConflict("another was first.") from error


main()
