"""In which order gradients came where ranks do not wait for each other: from a ledger, for a run that repeats one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.regular_files import read_regular
from headway.training.observe.ledger import Event
from headway.training.ranks.arrival_order import Arrival

EVENT = "asynchronous.round"
SCRIPT_NAME = "arrivals.json"
"""In the folder of a run that repeats another."""
Script = Mapping[int, tuple[Arrival, ...]]
"""Of each round, by how many updates were done before it."""


def script_from(events: Iterable[Event], num_steps: int) -> Script:
    """What led to the model after so many updates.

    Args:
        events: of rank 0, attempt after attempt; a round that was made again counts as it was made last.

    Raises:
        IntegrityError: the ledger does not have all of it.
    """
    found: dict[int, tuple[Arrival, ...]] = {}
    for event in events:
        if event["event"] == EVENT:
            try:
                arrivals = tuple(Arrival(*map(int, each)) for each in event["arrivals"])
                found[int(event["step"]) - len(arrivals)] = arrivals
            except (KeyError, ValueError, TypeError) as error:
                raise IntegrityError(
                    f"an event `{EVENT}` is damaged ({type(error).__name__}: {error}).",
                    where="ledger",
                    advice="Without it nothing repeats a run whose ranks do not wait for each other.",
                ) from error
    script: dict[int, tuple[Arrival, ...]] = {}
    done = 0
    while done < num_steps:
        if not found.get(done):
            raise IntegrityError(
                f"the run's ledger does not say in which order gradients came from step {done + 1:,} on.",
                where="ledger",
                advice="Without it nothing repeats a run whose ranks do not wait for each other.",
            )
        script[done] = found[done]
        done += len(found[done])
    return script


def require_possible(arrivals: Sequence[Arrival], done: int, staleness: int) -> None:
    """That each piece of a round's work is done once, at weights there were, which are not too stale.

    Args:
        done: updates before the round.

    Raises:
        IntegrityError: it is not so.
    """
    works = sorted(arrival.work for arrival in arrivals)
    is_bounded = all(max(done, n - staleness) <= arrival.version <= n for n, arrival in enumerate(arrivals, done))
    if works != list(range(done, done + len(arrivals))) or not is_bounded:
        raise IntegrityError(
            f"the order of the {len(arrivals)} gradients after step {done:,} cannot have been.",
            where=SCRIPT_NAME,
            advice="The ledger that it was read from is damaged: nothing repeats the run.",
        )


def as_json(script: Script) -> dict[str, tuple[Arrival, ...]]:
    return {str(done): arrivals for done, arrivals in script.items()}


def script_of(run_dir: Path) -> Script | None:
    """Of a run that repeats another; None: this one does not.

    Raises:
        IntegrityError: it cannot be read.
    """
    path = run_dir / SCRIPT_NAME
    try:
        found = json.loads(read_regular(path))
        return {int(done): tuple(Arrival(*map(int, each)) for each in arrivals) for done, arrivals in found.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise IntegrityError(f"no order of arrivals can be read ({error}).", where=str(path)) from error
