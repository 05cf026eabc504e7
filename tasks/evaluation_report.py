"""The evaluation report for people: Markdown for the Prefect UI, one self-contained HTML page for offline."""

from __future__ import annotations

from html import escape

from data_contracts.documents import EvaluationReport, Interval
from tasks.promotion import decide


def shown(interval: Interval) -> str:
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def figures(report: EvaluationReport) -> list[tuple[str, float, str]]:
    """Name, value and shown text of everything worth comparing, best first."""
    own = report.metrics[report.metric]
    rows = [("this model", own.value, shown(own))]
    if report.comparison is not None:
        rows.append(("champion", report.comparison.champion_value, f"{report.comparison.champion_value:.4f}"))
    for name, value in report.baselines.items():
        role = "to be beaten" if name == report.gate_baseline else "for scale"
        rows.append((f"{name} ({role})", value, f"{value:.4f}"))
    return sorted(rows, key=lambda row: row[1], reverse=report.greater_is_better)


def render_markdown(report: EvaluationReport) -> str:
    verdict = decide(report)
    lines = [
        f"### {report.metric.replace('_', ' ')} on {report.num_examples} held-out examples",
        "",
        "| | value |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, _, text in figures(report)),
        "",
        f"**{'Promote' if verdict.promote else 'Not promoted'}**: {verdict.reason}",
        "",
        "| slice | value |",
        "|---|---|",
        *(f"| {name} | {shown(interval)} |" for name, interval in report.slices.items()),
    ]
    return "\n".join(lines) + "\n"


STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --quiet: #667085; --line: #d8dde6; --paper: #fff;
  --own: #2563eb; --bar: #b6c2d4; --good: #15803d; --hold: #b45309; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf2; --quiet: #98a2b3; --line: #323b4b; --paper: #12161e;
  --own: #6ea8fe; --bar: #3d4a60; --good: #4ade80; --hold: #fbbf24; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 860px; margin: 40px auto; padding: 0 20px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 32px 0 8px; }
.quiet { color: var(--quiet); }
.verdict { border-left: 4px solid var(--good); padding: 8px 14px; margin: 20px 0; }
.verdict.hold { border-color: var(--hold); }
table { border-collapse: collapse; width: 100%; }
td { text-align: left; padding: 6px 8px; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 45%; }
.bar i { display: block; height: 12px; border-radius: 3px; background: var(--bar); }
.own { font-weight: 600; }
.own .bar i { background: var(--own); }
code { font-size: 12px; color: var(--quiet); }
"""


def render_html(report: EvaluationReport, pipeline: str) -> str:
    verdict = decide(report)
    rows = figures(report)
    widest = max(value for _, value, _ in rows) or 1.0
    bars = "".join(
        f'<tr class="{"own" if name == "this model" else ""}"><td>{escape(name)}</td>'
        f'<td class="bar"><i style="width:{100 * value / widest:.1f}%"></i></td>'
        f'<td class="number">{escape(text)}</td></tr>'
        for name, value, text in rows
    )
    headline = "Promote" if verdict.promote else "Do not promote"
    slices = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{shown(interval)}</td></tr>'
        for name, interval in report.slices.items()
    )
    direction = "higher is better" if report.greater_is_better else "lower is better"
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(pipeline)}: evaluation</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body>
<h1>{escape(pipeline)}: {escape(report.metric.replace("_", " "))}</h1>
<p class="quiet">{report.num_examples} held-out examples, {direction}, intervals by bootstrap over them.</p>
<div class="verdict{"" if verdict.promote else " hold"}"><b>{headline}</b><br>{escape(verdict.reason)}</div>
<h2>Beside other models on the same examples</h2><table>{bars}</table>
<h2>By slice</h2><table>{slices}</table>
<h2>What this stands on</h2><table>
<tr><td>checkpoint</td><td><code>{report.checkpoint.sha256}</code></td></tr>
<tr><td>shards</td><td><code>{report.manifest.sha256}</code></td></tr>
<tr><td>examples</td><td><code>{report.examples_sha256}</code></td></tr></table>
</body></html>
"""
