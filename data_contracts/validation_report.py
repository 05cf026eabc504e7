"""The contract's report: one HTML file that needs nothing else, made for whoever is on call.

Verdict first, then what broke, then the rest. Colour never stands alone, and no value of the data is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from data_contracts import report_text
from data_contracts.column_cards import column_cards
from data_contracts.contract import Contract
from data_contracts.documents import ContractReceipt, ExpectationVerdict, Snapshot
from data_contracts.report_columns import columns_section
from data_contracts.report_quarantine import QuarantineSample, quarantine_section
from data_contracts.report_style import STYLE
from data_contracts.verdicts import is_accepted

EMPTY = QuarantineSample()

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
""")


def render_html(
    receipt: ContractReceipt,
    contract: Contract,
    snapshot: Snapshot,
    quarantine: QuarantineSample = EMPTY,
    judged_now: Sequence[ExpectationVerdict] = (),
) -> str:
    """The whole page. Equal arguments give equal text.

    Args:
        judged_now: verdicts by the clock, which are no part of a receipt.
    """
    verdicts = (*receipt.verdicts, *judged_now)
    passed = receipt.passed and is_accepted(judged_now)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    broken = [verdict for verdict in failed if verdict.severity == "critical"]
    remarks = [verdict for verdict in failed if verdict.severity != "critical"]
    held = [verdict for verdict in verdicts if verdict.passed]
    sections = (
        _banner(receipt, broken, remarks, passed=passed),
        _tiles(receipt, snapshot, f"{len(held):,} / {len(verdicts):,}", passed=passed),
        _table("What broke", "These refuse the data.", broken),
        _table("Worth a look", "These refuse nothing.", remarks),
        columns_section(column_cards(receipt, contract), baseline=receipt.baseline.sha256 if receipt.baseline else ""),
        quarantine_section(
            quarantine,
            num_quarantined=receipt.num_quarantined,
            num_rows=receipt.num_rows,
            limit_ratio=contract.quarantine_limit_ratio,
        ),
        _table("What held", "", held),
        _facts(receipt, contract, snapshot),
    )
    word = "passed" if passed else "REFUSED"
    title = f"{word}: {contract.name} {contract.version}"
    return PAGE.substitute(title=escape(title), style=STYLE, body="\n".join(each for each in sections if each))


def _banner(
    receipt: ContractReceipt,
    broken: Sequence[ExpectationVerdict],
    remarks: Sequence[ExpectationVerdict],
    *,
    passed: bool,
) -> str:
    name = f"{escape(receipt.contract_name)} <span class='version'>{escape(receipt.contract_version)}</span>"
    if passed:
        mark, word, state = "✔", "Passed", "good"
        text = f"{report_text.count(receipt.num_rows, 'row')} may be trained on."
        if receipt.num_quarantined:
            text += f" {report_text.count(receipt.num_quarantined, 'row')} left out, listed below."
        if remarks:
            text += f" {report_text.count(len(remarks), 'remark')} below."
    else:
        mark, word, state = "✖", "Refused", "bad"
        rules = ", ".join(f"<code>{escape(verdict.rule_id)}</code>" for verdict in broken[:5])
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        text = (
            f"{report_text.count(len(broken), 'critical rule')} broken: {rules}{more}. Nothing was trained on this "
            "snapshot, and whatever served before still serves. Correct the data, or publish a new version of the "
            "contract, and run again."
        )
    return (
        f"<header class='{state}'><p class='mark' aria-hidden='true'>{mark}</p>"
        f"<div><p class='kicker'>Data contract {name}</p><h1>{word}</h1><p class='lead'>{text}</p></div></header>"
    )


def _tiles(receipt: ContractReceipt, snapshot: Snapshot, held: str, *, passed: bool) -> str:
    tiles = (
        (f"{receipt.num_rows:,}", "rows accepted" if passed else "rows judged"),
        (f"{receipt.num_quarantined:,}", "quarantined"),
        (held, "rules held"),
        (f"{len(snapshot.files):,}", "files"),
        (report_text.size(snapshot.size_bytes), "snapshot"),
    )
    cells = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for value, label in tiles)
    return f"<dl class='tiles'>{cells}</dl>"


def _table(title: str, note: str, verdicts: Sequence[ExpectationVerdict]) -> str:
    if not verdicts:
        return ""
    rows = "".join(_verdict_row(verdict) for verdict in verdicts)
    shown_note = f"<p class='note'>{note}</p>" if note else ""
    return (
        f"<section><h2>{title} <span class='count'>{len(verdicts)}</span></h2>{shown_note}"
        "<div class='scroll'><table class='verdicts'>"
        "<thead><tr><th>Verdict</th><th>Rule</th><th>Severity</th><th>Expectation</th>"
        f"<th>Observed</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _verdict_row(verdict: ExpectationVerdict) -> str:
    if verdict.passed:
        state, word = "good", "✔ held"
    else:
        state, word = ("bad", "✖ broken") if verdict.severity == "critical" else ("warn", "! broken")
    return (
        f"<tr><td><span class='badge {state}'>{word}</span></td>"
        f"<td class='rule'><code>{escape(verdict.rule_id)}</code></td>"
        f"<td>{verdict.severity}</td><td class='words'>{escape(verdict.description)}</td>"
        f"<td class='observed'>{escape(verdict.observed)}</td></tr>"
    )


def _facts(receipt: ContractReceipt, contract: Contract, snapshot: Snapshot) -> str:
    facts = (
        ("Contract", f"{contract.name} {contract.version}"),
        ("About", contract.description),
        ("Contract text", receipt.contract.sha256),
        ("Snapshot", receipt.snapshot.sha256),
        ("Compared with", receipt.baseline.sha256 if receipt.baseline else ""),
        ("Receipt", receipt.sha256),
        ("Source", f"{snapshot.format}, {len(snapshot.files):,} files, {snapshot.size_bytes:,} bytes"),
    )
    metrics = (
        (f"<code>{escape(name)}</code>", report_text.number(value)) for name, value in sorted(receipt.metrics.items())
    )
    newest = ((f"Newest row, {each.rule_id}", report_text.moment(each.unix_s)) for each in receipt.freshness)
    documents = ((escape(name), _value(text)) for name, text in (*facts, *newest) if text)
    return (
        f"<section><h2>Dataset and documents</h2>{_definitions(documents)}</section>"
        f"<section><h2>Metrics</h2>{_definitions(metrics)}</section>"
    )


def _definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl class='facts'>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def _value(text: str) -> str:
    is_digest = len(text) == 64 and " " not in text
    return f"<code>{escape(text)}</code>" if is_digest else escape(text)
