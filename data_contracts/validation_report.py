"""The contract's report: one HTML file that needs nothing else, made for whoever is on call.

Verdict first, then what broke, then the rest. Colour never stands alone, and no value of the data is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from data_contracts.contract import Contract
from data_contracts.documents import ContractReceipt, ExpectationVerdict, QuarantinedRow, Snapshot
from data_contracts.report_style import STYLE

MAX_LISTED_FILES = 500
"""A longer quarantine is cut on the page; the receipt has all of it."""

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


def render_html(receipt: ContractReceipt, contract: Contract, snapshot: Snapshot) -> str:
    """The whole page. Equal arguments give equal text."""
    failed = [verdict for verdict in receipt.verdicts if not verdict.passed]
    broken = [verdict for verdict in failed if verdict.severity == "critical"]
    remarks = [verdict for verdict in failed if verdict.severity != "critical"]
    held = [verdict for verdict in receipt.verdicts if verdict.passed]
    sections = (
        _banner(receipt, broken, remarks),
        _tiles(receipt, snapshot, len(held)),
        _table("What broke", "These refuse the data.", broken),
        _table("Worth a look", "These refuse nothing.", remarks),
        _quarantine(receipt, contract),
        _table("What held", "", held),
        _facts(receipt, contract, snapshot),
    )
    word = "passed" if receipt.passed else "REFUSED"
    title = f"{word}: {contract.name} {contract.version}"
    return PAGE.substitute(title=escape(title), style=STYLE, body="\n".join(each for each in sections if each))


def _banner(
    receipt: ContractReceipt, broken: Sequence[ExpectationVerdict], remarks: Sequence[ExpectationVerdict]
) -> str:
    name = f"{escape(receipt.contract_name)} <span class='version'>{escape(receipt.contract_version)}</span>"
    if receipt.passed:
        mark, word, state = "✔", "Passed", "good"
        text = f"{_count(receipt.num_rows, 'row')} may be trained on."
        if receipt.quarantined:
            text += f" {_count(len(receipt.quarantined), 'row')} left out, listed below."
        if remarks:
            text += f" {_count(len(remarks), 'remark')} below."
    else:
        mark, word, state = "✖", "Refused", "bad"
        rules = ", ".join(f"<code>{escape(verdict.rule_id)}</code>" for verdict in broken[:5])
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        text = (
            f"{_count(len(broken), 'critical rule')} broken: {rules}{more}. Nothing was trained on this snapshot, and "
            "whatever served before still serves. Correct the data, or publish a new version of the contract, and run "
            "again."
        )
    return (
        f"<header class='{state}'><p class='mark' aria-hidden='true'>{mark}</p>"
        f"<div><p class='kicker'>Data contract {name}</p><h1>{word}</h1><p class='lead'>{text}</p></div></header>"
    )


def _tiles(receipt: ContractReceipt, snapshot: Snapshot, num_held: int) -> str:
    num_quarantined = int(receipt.metrics.get("num_quarantined", len(receipt.quarantined)))
    tiles = (
        (f"{receipt.num_rows:,}", "rows accepted" if receipt.passed else "rows judged"),
        (f"{num_quarantined:,}", "quarantined"),
        (f"{num_held:,} / {len(receipt.verdicts):,}", "expectations held"),
        (f"{len(snapshot.files):,}", "files"),
        (_size(snapshot.size_bytes), "snapshot"),
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
        "<div class='scroll'><table><thead><tr><th>Verdict</th><th>Rule</th><th>Severity</th><th>Expectation</th>"
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
        f"<td>{verdict.severity}</td><td>{escape(verdict.description)}</td>"
        f"<td class='observed'>{escape(verdict.observed)}</td></tr>"
    )


def _quarantine(receipt: ContractReceipt, contract: Contract) -> str:
    if not receipt.quarantined:
        return ""
    num_quarantined = int(receipt.metrics.get("num_quarantined", len(receipt.quarantined)))
    rows = "".join(_quarantined_row(row) for row in receipt.quarantined[:MAX_LISTED_FILES])
    hidden = num_quarantined - min(len(receipt.quarantined), MAX_LISTED_FILES)
    limit = f"{contract.quarantine_limit_ratio * 100:.4g} %"
    more = f"<p class='note'>and {hidden:,} more.</p>" if hidden else ""
    return (
        f"<section><h2>Quarantined <span class='count'>{num_quarantined:,}</span></h2>"
        f"<p class='note'>Left out of training; at most {limit} of all rows may be.</p>"
        f"<div class='scroll'><table><thead><tr><th>File</th><th>Rules it breaks</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{more}</section>"
    )


def _quarantined_row(row: QuarantinedRow) -> str:
    rules = ", ".join(f"<code>{escape(rule)}</code>" for rule in row.rule_ids)
    return f"<tr><td class='path'><code>{_path(row.path)}</code></td><td>{rules}</td></tr>"


def _path(path: str) -> str:
    """A path that cannot imitate another: control and direction characters are spelled out."""
    spelled = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)
    return escape(spelled.encode("utf-8", "backslashreplace").decode())


def _facts(receipt: ContractReceipt, contract: Contract, snapshot: Snapshot) -> str:
    facts = (
        ("Contract", f"{contract.name} {contract.version}"),
        ("About", contract.description),
        ("Contract text", receipt.contract.sha256),
        ("Snapshot", receipt.snapshot.sha256),
        ("Receipt", receipt.sha256),
        ("Source", f"{snapshot.format}, {len(snapshot.files):,} files, {snapshot.size_bytes:,} bytes"),
    )
    metrics = ((f"<code>{escape(name)}</code>", _number(value)) for name, value in sorted(receipt.metrics.items()))
    documents = ((escape(name), _value(text)) for name, text in facts if text)
    return (
        f"<section><h2>Dataset and documents</h2>{_definitions(documents)}</section>"
        f"<section><h2>Metrics</h2>{_definitions(metrics)}</section>"
    )


def _definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl class='facts'>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def _value(text: str) -> str:
    is_digest = len(text) == 64 and " " not in text
    return f"<code>{escape(text)}</code>" if is_digest else escape(text)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
