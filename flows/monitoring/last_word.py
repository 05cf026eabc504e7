"""What of a workspace's metrics can be pushed once, and stay true until the next push."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric

from headway.data_contracts.store.plain_text import distinct_line
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.figures import TrainingFigures
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.probe_records import newest_probes
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.pushgateway import Pushgateway
from headway.flows.monitoring.samples import MAX_LABEL_CHARS, Samples
from headway.flows.monitoring.totals import Totals
from headway.flows.monitoring.workspace_metrics import fill_kept, fill_owners, fill_probes
from headway.flows.show.status import read_kept


class LastWord:
    """What is kept and what is over.

    A gateway repeats it until the next push, and so nothing is in it that would be a lie by then: neither what goes on,
    nor the machine, nor when somebody looked. A collector of `prometheus_client`.

    Args:
        prices: without any, nothing is said of costs.
    """

    def __init__(self, workspace: Workspace, prices: PricesSpec | None = None) -> None:
        self._workspace, self._prices = workspace, prices or PricesSpec()

    def collect(self) -> Iterable[Metric]:
        """Raises `HeadwayError` or `OSError`: the workspace cannot be looked at."""
        Workspace.existing(self._workspace.uri)
        settle(self._workspace)
        totals, samples = Totals(self._prices), Samples()
        for account in all_accounts(self._workspace):
            totals.take(account)
        totals.fill(samples, TrainingFigures(), Counter())
        fill_owners(samples, totals.owners())
        fill_kept(samples, read_kept(self._workspace))
        fill_probes(samples, newest_probes(self._workspace))
        return samples.families()


def push(
    workspace: Workspace, prices: PricesSpec | None, within_s: float, environ: Mapping[str, str] = os.environ
) -> str:
    """Put it to the gateway that is set. Returns the gateway's address, for people.

    Raises:
        ConfigError: none is set.
        EnvironmentProblem: it was not taken.
    """
    gateway = Pushgateway.from_environment(environ)
    gateway.put(LastWord(workspace, prices), {"instance": instance_of(workspace)}, within_s)
    return gateway.shown


def instance_of(workspace: Workspace) -> str:
    """The label by which workspaces differ, as exporters do by their address: a store is one for all its machines."""
    named = f"{socket.gethostname()}:{workspace.local_root}" if workspace.is_local else workspace.uri
    return distinct_line(named, MAX_LABEL_CHARS)
