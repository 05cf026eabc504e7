"""Devices that pipelines compete for: slots of a Prefect server's global concurrency limits, held while ranks run.

A slot is a lease: it is renewed as long as its holder lives, and whoever is killed loses it within `LEASE_S` and the
server's own look-out. Prefect's limits know no priority, so who waits is counted as well, in a limit of each priority:
nobody takes a device while one of a higher priority waits for it. Of equals the first to ask after it is free has it.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, RunStopped
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.prefect_api.client import PrefectClient
from headway.flows.prefect_api.foreign_answers import error_message
from headway.tasks.core.devices import LIMITS, Devices, UnlimitedDevices
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Ledger

LEASE_S = 60.0
"""The least that Prefect grants."""
RENEW_S = LEASE_S / 3
POLL_S = 2.0
PRIORITY = re.compile(r"-?[0-9]{1,9}")
PATH = "/v2/concurrency_limits"


def limit_name(prefix: str, device: str) -> str:
    return f"{prefix}:{device}"


def queue_name(prefix: str, device: str, priority: int) -> str:
    """The limit that counts who waits for a device with a priority."""
    return f"{limit_name(prefix, device)}:waiting:{priority}"


def devices_of(pipeline: PipelineSpec, ledger: Ledger, stop: StopRequest) -> Devices:
    """Slots of the server's, if there is one to count them."""
    prefix = os.environ.get(LIMITS, "")
    if not (prefix and pipeline.occupies and PREFECT_API_URL.value()):
        return UnlimitedDevices()
    return CountedDevices(slots=pipeline.occupies, priority=pipeline.priority, prefix=prefix, ledger=ledger, stop=stop)


@dataclass(kw_only=True)
class CountedDevices:
    """Slots that the server counts."""

    slots: Mapping[str, int]
    """By the device's name."""
    priority: int
    prefix: str
    ledger: Ledger
    stop: StopRequest
    poll_s: float = POLL_S
    _held: contextlib.ExitStack | None = field(default=None, init=False)

    def take(self) -> None:
        """Wait for all of them, holding none until all are free: two who wait for two never lock each other out."""
        if self._held is not None:
            return
        with (
            self.ledger.span("devices.wait", devices=dict(self.slots)),
            get_client(sync_client=True) as client,
            contextlib.ExitStack() as waiting,
        ):
            server = PrefectClient(client, PREFECT_API_URL.value() or "")
            self._require_limits(server)
            reported, is_queued = "", False
            while True:
                blocked = self._try(server)
                if not blocked:
                    return
                # Who has to wait is counted, so that others with less priority let it pass.
                if not is_queued:
                    is_queued = self._queue(server, waiting)
                if blocked != reported:
                    self.ledger.event("devices.waiting", message=f"waits for {self}: {blocked}")
                    reported = blocked
                if (due := self.stop.if_due()) is not None:
                    raise RunStopped(
                        f"{due.why}: it waited for {self}, and {blocked}.",
                        advice="The next retrain waits for them again.",
                        reason=due.reason,
                    )
                time.sleep(self.poll_s)

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def __str__(self) -> str:
        return " and ".join(f"{number} {device}" for device, number in sorted(self.slots.items()))

    def _try(self, server: PrefectClient) -> str:
        """Why they cannot be had now; empty: they are held."""
        try:
            with server.reading():
                for limit in server.all(f"{PATH}/filter"):
                    if limit["active_slots"] and self._has_precedence(str(limit["name"])):
                        return "one of a higher priority waits for them"
            # Where one is missing, those that were taken are given back: two that hold a part each would wait for ever.
            with contextlib.ExitStack() as held:
                for device, number in sorted(self.slots.items()):
                    name = limit_name(self.prefix, device)
                    lease = _lease(server, name, number)
                    if lease is None:
                        return f"{name} has not so many free"
                    held.enter_context(_kept(name, number, lease, self.ledger))
                self._held = held.pop_all()
        except httpx.HTTPError as error:
            return f"the Prefect server does not answer ({error_message(error)})"
        return ""

    def _has_precedence(self, name: str) -> bool:
        """Whether a limit counts those who wait for one of these devices with a higher priority."""
        # The name of a queue ends with its priority, which is what remains.
        waiting = (name.removeprefix(queue_name(self.prefix, device, 0)[:-1]) for device in self.slots)
        return any(PRIORITY.fullmatch(each) and int(each) > self.priority for each in waiting if each != name)

    def _queue(self, server: PrefectClient, waiting: contextlib.ExitStack) -> bool:
        for device in sorted(self.slots):
            name = queue_name(self.prefix, device, self.priority)
            try:
                lease = _lease(server, name, 1)
            except httpx.HTTPError:
                return False
            if lease is not None:
                waiting.enter_context(_kept(name, 1, lease, self.ledger))
        return True

    def _require_limits(self, server: PrefectClient) -> None:
        for device, number in self.slots.items():
            name = limit_name(self.prefix, device)
            advice = f"Give the profile `limits: {{{device}: NUMBER}}`, and `headway deploy` it."
            try:
                limit = server.ask("GET", f"{PATH}/{name}")
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
                raise ConfigError(
                    f"the Prefect server has no concurrency limit {name!r}.", where=f"occupies.{device}", advice=advice
                ) from error
            with server.reading():
                is_too_small = limit["limit"] < number
            if is_too_small:
                what = f"{number} {device} are never free: the limit {name!r} is {limit['limit']}."
                raise ConfigError(what, where=f"occupies.{device}", advice=advice)


def _lease(server: PrefectClient, name: str, number: int) -> str | None:
    """A lease on so many slots; None where there are not so many."""
    body = {"names": [name], "slots": number, "mode": "concurrency", "lease_duration": LEASE_S}
    try:
        with server.reading():
            return str(server.ask("POST", f"{PATH}/increment-with-lease", body)["lease_id"])
    except httpx.HTTPStatusError as error:
        # 423 is how Prefect says that so many slots are not free.
        if error.response.status_code != httpx.codes.LOCKED:
            raise
        return None


@contextlib.contextmanager
def _kept(name: str, number: int, lease: str, ledger: Ledger) -> Iterator[None]:
    """A lease that a thread renews while the body runs, and that is given back after it."""
    keeper = _Keeper(name, number, lease, ledger)
    here = contextvars.copy_context()  # which server it is, among others
    thread = threading.Thread(target=here.run, args=(keeper.keep,), name=f"keeps {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        keeper.done.set()
        thread.join()


class _Keeper:
    def __init__(self, name: str, number: int, lease: str, ledger: Ledger) -> None:
        self._name, self._number, self._ledger = name, number, ledger
        self._lease: str | None = lease
        self.done = threading.Event()

    def keep(self) -> None:
        with get_client(sync_client=True) as client:
            server = PrefectClient(client, "")
            while not self.done.wait(RENEW_S):
                # Asked again in a third of the lease, whoever answered in the server's place.
                with contextlib.suppress(httpx.TransportError, EnvironmentProblem):
                    self._renew(server)
            if self._lease is not None:
                with contextlib.suppress(httpx.HTTPError, EnvironmentProblem):  # it runs out by itself
                    server.ask("POST", f"{PATH}/decrement-with-lease", {"lease_id": self._lease})

    def _renew(self, server: PrefectClient) -> None:
        """A training that continues is worth more than its count: a lease that is gone is asked for anew."""
        try:
            if self._lease is None:
                self._lease = _lease(server, self._name, self._number)
            else:
                server.ask("POST", f"{PATH}/leases/{self._lease}/renew", {"lease_duration": LEASE_S})
        except httpx.HTTPStatusError as error:
            # A server's own failure, from 500 on, says nothing of the lease: the next try may find it.
            if self._lease is not None and error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                self._lease = None
                what = f"the server forgot that {self._number} of {self._name} are held here; they are asked for anew."
                self._ledger.event("devices.forgotten", message=what)
