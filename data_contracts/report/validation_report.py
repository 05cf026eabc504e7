"""The contract's report: one HTML file that needs nothing else, made for whoever is on call.

Verdict first, then what broke, then the rest. Colour never stands alone, and no value of the data is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.data_contracts.engine.verdicts import is_accepted, is_evaluated
from headway.data_contracts.report.column_cards import column_cards
from headway.data_contracts.report.columns import columns_section
from headway.data_contracts.report.page import banner, definitions, page, section, tiles, value
from headway.data_contracts.report.quarantined_rows import QuarantineSample, examples_of, quarantine_section
from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.documents import ContractReceipt, ExpectationVerdict, Snapshot
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text

LINKS_BEGIN, LINKS_END = "<nav>", "</nav>"
EMPTY = QuarantineSample()
MAX_FAILED = 10
"""Failing rules of one kind that are seen at once."""
MAX_UNFOLDED = 8
"""Lines of what needs nobody's attention; of more none is seen at first."""


class PageLink(NamedTuple):
    name: str
    path: str
    """Relative to the page."""
    text: str


def render_html(
    receipt: ContractReceipt,
    contract: Contract,
    snapshot: Snapshot,
    quarantine: QuarantineSample = EMPTY,
    evaluated_now: Sequence[ExpectationVerdict] = (),
    links: Sequence[PageLink] = (),
    evaluated_unix_s: float | None = None,
) -> str:
    """The whole page. Equal arguments give equal text.

    Args:
        links: to what lies beside the page in its workspace.
        evaluated_unix_s: when the clock judged `evaluated_now`.
        evaluated_now: verdicts by the clock, which are no part of a receipt.
    """
    verdicts = (*receipt.verdicts, *evaluated_now)
    passed = receipt.passed and is_accepted(evaluated_now)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    broken = [verdict for verdict in failed if verdict.severity == "critical"]
    remarks = [verdict for verdict in failed if verdict.severity != "critical"]
    held = [verdict for verdict in verdicts if verdict.passed and is_evaluated(verdict)]
    unjudged = [verdict for verdict in verdicts if not is_evaluated(verdict)]
    sections = (
        _banner(receipt, broken, remarks, _date(receipt, evaluated_unix_s), passed=passed),
        _tiles(receipt, snapshot, f"{len(held):,} / {len(verdicts):,}", passed=passed),
        _table("What broke", "These refuse the data.", broken, quarantine),
        _table("Worth a look", "These refuse nothing.", remarks, quarantine),
        _table("Not evaluated", "There is no accepted snapshot to compare with.", unjudged),
        columns_section(column_cards(receipt, contract), baseline=receipt.baseline.sha256 if receipt.baseline else ""),
        quarantine_section(
            quarantine,
            num_quarantined=receipt.num_quarantined,
            num_rows=receipt.num_rows,
            limit_ratio=contract.quarantine_limit_ratio,
        ),
        _evaluated_each_time(receipt) if not evaluated_now else "",
        _table("What held", "", held, is_folded=len(held) > MAX_UNFOLDED),
        _links(links),
        _facts(receipt, contract, snapshot),
    )
    word = "passed" if passed else "REFUSED"
    title = f"{word}: {contract.name} {contract.version}"
    return page(title, sections)


def _banner(
    receipt: ContractReceipt,
    broken: Sequence[ExpectationVerdict],
    remarks: Sequence[ExpectationVerdict],
    date: str,
    *,
    passed: bool,
) -> str:
    name = f"{html(receipt.contract_name)} <span class='version'>{html(receipt.contract_version)}</span>{html(date)}"
    if passed:
        word = "Passed"
        text = f"{report_text.count(receipt.num_rows, 'row')} may be trained on."
        if receipt.num_quarantined:
            text += f" {report_text.count(receipt.num_quarantined, 'row')} left out, listed below."
        if remarks:
            text += f" {report_text.count(len(remarks), 'remark')} below."
    else:
        word = "Refused"
        rules = ", ".join(f"<code>{html(verdict.rule_id)}</code>" for verdict in broken[:5])
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        text = (
            f"{report_text.count(len(broken), 'critical rule')} broken: {rules}{more}. Nothing was trained on this "
            "snapshot, and whatever served before still serves. Correct the data, or publish a new version of the "
            "contract, and run again."
        )
    return banner("good" if passed else "bad", f"Data contract {name}", word, text)


def _date(receipt: ContractReceipt, evaluated_unix_s: float | None) -> str:
    """When the clock judged the data, or how new they are: a receipt is the same whenever it is made."""
    if evaluated_unix_s is not None:
        return f", {report_text.moment(evaluated_unix_s)} UTC"
    newest = max((each.unix_s for each in receipt.freshness if each.unix_s is not None), default=None)
    return "" if newest is None else f", rows up to {report_text.moment(newest)} UTC"


def _links(links: Sequence[PageLink]) -> str:
    if not links:
        return ""
    shown = definitions((html(each.name), f'<a href="{html(each.path)}">{html(each.text)}</a>') for each in links)
    return f"{LINKS_BEGIN}{section('Look further', shown)}{LINKS_END}"


def without_links(page: bytes) -> bytes:
    """The same page for another place, from where its relative links would lead nowhere."""
    before, begin, rest = page.partition(LINKS_BEGIN.encode())
    return before + rest.partition(LINKS_END.encode())[2] if begin else page


def _tiles(receipt: ContractReceipt, snapshot: Snapshot, held: str, *, passed: bool) -> str:
    shown = (
        (f"{receipt.num_rows:,}", "rows accepted" if passed else "rows checked"),
        (f"{receipt.num_quarantined:,}", "quarantined"),
        (held, "rules held"),
        (f"{len(snapshot.files):,}", "files"),
        (report_text.size(snapshot.size_bytes), "snapshot"),
    )
    return tiles(shown)


def _table(
    title: str,
    note: str,
    verdicts: Sequence[ExpectationVerdict],
    quarantine: QuarantineSample = EMPTY,
    *,
    is_folded: bool = False,
) -> str:
    """Args:
    quarantine: where rows break these rules.
    """
    if not verdicts:
        return ""
    table = _verdicts(verdicts[:MAX_FAILED] if not is_folded else verdicts, quarantine)
    if is_folded:
        table = f"<details><summary>Show all</summary>{table}</details>"
    elif rest := verdicts[MAX_FAILED:]:
        table += f"<details><summary>{len(rest):,} more</summary>{_verdicts(rest, quarantine)}</details>"
    return section(title, table, count=len(verdicts), note=note)


def _verdicts(verdicts: Sequence[ExpectationVerdict], quarantine: QuarantineSample) -> str:
    rows = "".join(_verdict_row(verdict, examples_of(verdict, quarantine)) for verdict in verdicts)
    return (
        "<div class='scroll'><table class='verdicts'>"
        "<thead><tr><th>Verdict</th><th>Rule</th><th>Severity</th><th>Expectation</th>"
        f"<th>Observed</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _verdict_row(verdict: ExpectationVerdict, examples: str) -> str:
    if not is_evaluated(verdict):
        state, word = "warn", "– not evaluated"
    elif verdict.passed:
        state, word = "good", "✔ held"
    else:
        state, word = ("bad", "✖ broken") if verdict.severity == "critical" else ("warn", "! broken")
    return (
        f"<tr><td><span class='badge {state}'>{word}</span></td>"
        f"<td class='rule'><code>{html(verdict.rule_id)}</code></td>"
        f"<td>{verdict.severity}</td><td class='words'>{html(verdict.description)}</td>"
        f"<td class='observed'>{html(verdict.observed)}{examples}</td></tr>"
    )


def _evaluated_each_time(receipt: ContractReceipt) -> str:
    """What only a clock can say, and this page was written once."""
    rows = "".join(
        f"<tr><td class='rule'><code>{html(each.rule_id)}</code></td><td>{each.severity}</td>"
        f"<td class='words'>{html(each.description)}</td></tr>"
        for each in receipt.freshness
    )
    note = "By the clock, whenever the data pass the gate; a refusal gets a page of its own."
    table = f"<div class='scroll'><table><tbody>{rows}</tbody></table></div>"
    return section("Evaluated again each time", table, count=len(receipt.freshness), note=note) if rows else ""


def _facts(receipt: ContractReceipt, contract: Contract, snapshot: Snapshot) -> str:
    num_files = report_text.count(len(snapshot.files), "file")
    facts = (
        ("Contract", f"{contract.name} {contract.version}"),
        ("About", contract.description),
        ("Contract text", receipt.contract.sha256),
        ("Suite", receipt.suite.sha256 if receipt.suite else ""),
        ("Snapshot", receipt.snapshot.sha256),
        ("Compared with", receipt.baseline.sha256 if receipt.baseline else ""),
        ("Receipt", receipt.sha256),
        ("Source", f"{snapshot.format}, {num_files}, {snapshot.size_bytes:,} bytes"),
    )
    metrics = (
        (f"<code>{html(name)}</code>", report_text.number(each)) for name, each in sorted(receipt.metrics.items())
    )
    newest = ((f"Newest row, {each.rule_id}", report_text.moment(each.unix_s)) for each in receipt.freshness)
    documents = ((html(name), value(text)) for name, text in (*facts, *newest) if text)
    listed = definitions(metrics)
    if len(receipt.metrics) > MAX_UNFOLDED:
        listed = f"<details><summary>Show all</summary>{listed}</details>"
    shown = section("Metrics", listed, count=len(receipt.metrics)) if receipt.metrics else ""
    return section("Dataset and documents", definitions(documents)) + shown
