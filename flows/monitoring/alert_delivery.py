"""Whether alerts reach a person: one of each, marked as a test, goes the way that a real one would.

Alertmanager takes them by its API, version 2, as it does from Prometheus, and routes them as it is configured to. What
went out it tells in its own metrics. Those without Prometheus are told by a notification block of a Prefect server.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, get_args
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.objectives import Severity
from headway.flows.console.output import print_line, print_lines
from headway.flows.monitoring.alerts import ALERTS, Alert
from headway.flows.monitoring.rules import RUNBOOKS
from headway.flows.show.delivered_alerts import keep_delivered

TEST = "headway-alerts-test"
"""The pipeline of all that is sent, so that a route can leave tests out."""
LASTS_S: Mapping[Severity, float] = {"page": 60.0, "ticket": 900.0}
"""Until they are over by themselves. The shipped routes hold tickets back for five minutes."""
ANSWER_S = 10.0
EVERY_S = 0.25
MAX_ANSWER_BYTES = 16 << 20
MAX_COUNT = 1e15
_SENT = re.compile(r"^alertmanager_notification_requests(_failed)?_total\{[^}]*\} (\S+)$", re.MULTILINE)
"""Counted when a receiver has answered, or has not; a notification itself is counted before that."""


class SentAlert(BaseModel):
    name: str
    severity: Severity


class Delivery(BaseModel):
    """What came of a test."""

    to: str
    """Alertmanager's address, or the blocks."""
    sent: list[SentAlert]
    num_notified: int
    """Notifications that a receiver took while we waited: one for each group of alerts and receiver."""
    num_failed: int
    """Of which Alertmanager may try some again."""
    waited_s: float


def chosen(severity: Severity | None) -> list[Alert]:
    """One of each name and severity."""
    return [alert for alert in ALERTS if severity in (None, alert.severity)]


def try_alertmanager(
    address: str, alerts: Iterable[Alert], *, owner: str = "", runbooks: str = "", within_s: float = ANSWER_S
) -> Delivery:
    """Send them, and wait until as many notifications went out as there are pages.

    Args:
        address: of Alertmanager, such as http://127.0.0.1:9093.
        owner: whose routes are tried; empty: those of alerts without one.
        runbooks: the address of the documentation, as the external label of Prometheus says it.
        within_s: how long to wait.

    Raises:
        ConfigError: that is no address.
        EnvironmentProblem: nobody answers there, or refuses them; nothing went out, or a receiver did not take it.
    """
    alerts = list(alerts)
    place = _checked(address)
    began_s = time.monotonic()
    num_pages = sum(alert.severity == "page" for alert in alerts)
    try:
        before = _counted(place)
        _ask(place, "POST", "/api/v2/alerts", _as_sent(alerts, owner, runbooks))
        # Tickets are held back for minutes; where there are no pages, one of them is all that is waited for.
        while True:
            num_taken, num_failed = (now - then for now, then in zip(_counted(place), before, strict=True))
            waited_s = time.monotonic() - began_s
            if num_failed or num_taken >= max(num_pages, 1) or waited_s >= within_s:
                break
            time.sleep(EVERY_S)
    except (httpx.HTTPError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"the Alertmanager does not take alerts ({_answer(error)}).",
            where=place,
            advice="Name the address at which Prometheus reaches it with --alertmanager.",
        ) from error
    delivery = Delivery(
        to=place,
        sent=[SentAlert(name=alert.name, severity=alert.severity) for alert in alerts],
        num_notified=num_taken,
        num_failed=num_failed,
        waited_s=waited_s,
    )
    _require_delivered(delivery, num_pages)
    if num_pages:
        keep_delivered(place)
    return delivery


def _checked(address: str) -> str:
    """Without its last slash. Raises `ConfigError`: it is none."""
    with contextlib.suppress(ValueError):  # of brackets that are none of an IPv6 address, or a port that there is not
        url = urlsplit(address)
        is_port = url.port is None or url.port > 0
        if url.scheme in ("http", "https") and url.hostname and is_port and url.username is url.password is None:
            return address.rstrip("/")
    raise ConfigError(
        "is no address of an Alertmanager.",
        where="--alertmanager",
        advice="Write it as http://127.0.0.1:9093, without a user and a password.",
    )


def _require_delivered(delivery: Delivery, num_pages: int) -> None:
    if delivery.num_failed:
        raise EnvironmentProblem(
            f"{count(delivery.num_failed, 'notification')} reached no receiver, and {delivery.num_notified} did.",
            where=delivery.to,
            advice="Alertmanager's log names the receiver and what it answered.",
        )
    if not delivery.num_notified and num_pages:
        raise EnvironmentProblem(
            f"{count(len(delivery.sent), 'alert')} were taken, and no notification went out within "
            f"{delivery.waited_s:.0f} s.",
            where=delivery.to,
            advice="Look at its routes: `amtool config routes test severity=page` names the receiver. A longer "
            "group_wait takes a longer --within.",
        )


def _as_sent(alerts: Iterable[Alert], owner: str, runbooks: str) -> list[dict[str, Any]]:
    now = datetime.datetime.now(datetime.UTC)
    return [
        {
            "labels": {
                **{"alertname": alert.name, "severity": alert.severity, "pipeline": TEST},
                # Each of a job and a machine of its own: of one of them the greater cause would inhibit the others.
                **{"job": f"{TEST}-{place}", "instance": f"{socket.gethostname()}:{place}"},
                **({"owner": owner} if owner else {}),
            },
            "annotations": {
                "summary": f"TEST: {alert.name}. Nothing is wrong.",
                "description": f"Sent by `headway alerts test`. A real one says: {alert.summary}",
                **({"runbook_url": f"{runbooks.rstrip('/')}/{RUNBOOKS}#{alert.name.lower()}"} if runbooks else {}),
            },
            "startsAt": now.isoformat(),
            "endsAt": (now + datetime.timedelta(seconds=LASTS_S[alert.severity])).isoformat(),
        }
        for place, alert in enumerate(alerts)
    ]


def _ask(place: str, method: str, path: str, body: Json = None) -> str:
    """What is answered: by anybody who took the port, so bounded in length and, headers included, in time.

    Raises:
        httpx.HTTPError, TimeoutError: it is no answer, or refuses.
    """

    async def ask() -> bytes:
        data = bytearray()
        async with (
            asyncio.timeout(ANSWER_S),
            httpx.AsyncClient(base_url=place, timeout=ANSWER_S) as client,
            client.stream(method, path, json=body, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            async for part in answer.aiter_raw():
                data += part
                if len(data) > MAX_ANSWER_BYTES:
                    raise httpx.ReadError("it says more than any Alertmanager does")
            if not answer.is_success:
                said = data.decode(errors="replace").strip()[:200]
                raise httpx.ReadError(f"{answer.status_code}: {said}")
        return bytes(data)

    return asyncio.run(ask()).decode(errors="replace")


def _counted(place: str) -> tuple[int, int]:
    """Notifications that receivers took so far, and requests to them that failed."""
    totals = {"": 0.0, "_failed": 0.0}
    for failed, value in _SENT.findall(_ask(place, "GET", "/metrics")):
        totals[failed] += _number(value)
    return int(totals[""] - totals["_failed"]), int(totals["_failed"])


def _number(text: str) -> float:
    """Raises `httpx.DecodingError`: it counts nothing."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < MAX_COUNT:
            return value
    raise httpx.DecodingError(f"a counter says {text[:20]!r}")


def _answer(error: httpx.HTTPError | TimeoutError) -> str:
    if isinstance(error, TimeoutError):
        return f"no whole answer within {ANSWER_S:.0f} s"
    return str(error) or type(error).__name__


def try_blocks(blocks: Mapping[Severity, str]) -> Delivery:
    """A message of each severity through its notification block of the configured Prefect server, `type/name`.

    The server sends real ones itself, from its own machine; these are sent from here.

    Raises:
        ConfigError: no such block, or one that notifies nobody.
        EnvironmentProblem: no server, or who is to be told does not take it.
    """
    from headway.flows.prefect_api.client import connected

    began_s = time.monotonic()
    with connected() as server:
        for slug in blocks.values():
            server.notification_block(slug)
    for severity, slug in blocks.items():
        try:
            asyncio.run(_notify(slug, severity))
        except HeadwayError:
            raise
        except Exception as error:  # each kind of block raises its own library's
            raise EnvironmentProblem(
                f"the message was not taken ({type(error).__name__}).",
                where=slug,
                advice="Look at the block on the server's page Blocks, and whether this machine reaches its address.",
            ) from error
    whom = " and ".join(dict.fromkeys(blocks.values()))
    if "page" in blocks:
        keep_delivered(whom)
    return Delivery(
        to=whom,
        sent=[SentAlert(name=f"test {severity}", severity=severity) for severity in blocks],
        num_notified=len(blocks),
        num_failed=0,
        waited_s=time.monotonic() - began_s,
    )


async def _notify(slug: str, severity: Severity) -> None:
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block

    block: Block = await Block.aload(slug)
    if not isinstance(block, NotificationBlock):
        raise ConfigError("that block notifies nobody.", where=slug, advice="Name a notification block, type/name.")
    with block.raise_on_failure():
        subject = f"Headway TEST, a {severity}"
        await block.notify("Nothing is wrong. Sent by `headway alerts test`.", subject)


def print_delivery(delivery: Delivery) -> None:
    numbers = Counter(each.severity for each in delivery.sent)
    by_severity = [count(numbers[severity], severity) for severity in get_args(Severity) if numbers[severity]]
    print_line(f"sent         {' and '.join(by_severity)} to {delivery.to}, marked TEST")
    print_line(f"went out     {count(delivery.num_notified, 'notification')} within {delivery.waited_s:.1f} s")
    print_line("next         See that each arrived where it should. Tickets follow when their group_wait is over.")


def print_alerts(alerts: Iterable[Alert]) -> None:
    width = max(len(alert.name) for alert in ALERTS)
    print_lines("\n".join(f"{alert.severity:<6}  {alert.name:<{width}}  {_plain(alert.summary)}" for alert in alerts))


def _plain(template: str) -> str:
    """Words for Prometheus's placeholders."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", lambda found: found[1].upper(), template)
