"""A report says by itself whether it is whole, and its page what was measured, missed and skipped."""

from __future__ import annotations

import io
import json

from headway.data_contracts.store.digests import canonical_json
from headway.flows.console.console import plain_console
from headway.flows.drill.objectives import MODES, evaluate
from headway.flows.drill.report import (
    AlertFigure,
    DrillReport,
    DrillResult,
    document,
    has_its_digest,
    print_report,
    to_html,
)

FIGURES = {
    "finished": True,
    "named": True,
    "fell_back": True,
    "lost_steps": 45,
    "alert_raised": True,
    "equal_bits": True,
}
DAMAGED = DrillResult(
    mode="F4",
    title="Corrupt checkpoint",
    state="missed",
    planted="bit 3 of <b>",
    figures={**FIGURES, "detect_s": 1.25, "processes_left": 0},
    objectives=evaluate(MODES["F4"].objectives, {**FIGURES, "processes_left": 0}),
    alert=AlertFigure(alert="CheckpointCorrupt", severity="page", family="f", before=0.0, after=1.0, raised=True),
    runbooks=list(MODES["F4"].runbooks),
)
SKIPPED = DrillResult(mode="F8", title="Contention", state="skipped", reason="no kernel for it.")
REPORT = DrillReport(
    headway="0.1.0",
    host="here",
    launcher="local",
    seed=7,
    begin_unix_s=0.0,
    end_unix_s=90.0,
    drills=[DAMAGED, SKIPPED],
)


def test_a_document_carries_the_digest_of_all_the_rest() -> None:
    written = json.loads(canonical_json(document(REPORT)))
    assert has_its_digest(written)
    assert DrillReport.model_validate({name: part for name, part in written.items() if name != "sha256"}) == REPORT
    written["drills"][0]["state"] = "passed"
    assert not has_its_digest(written)


def test_page_and_lines_say_what_was_missed_and_what_was_skipped() -> None:
    page = to_html(REPORT)
    assert "0 drills passed, 1 missed an objective, 1 skipped" in page
    assert "steps made again" in page and "45" in page and "at most 40" in page and "no kernel for it." in page
    assert "<b>" not in page and document(REPORT)["sha256"] in page
    assert "docs/operations/failure-modes.md#corrupt-checkpoint" in page
    stream = io.StringIO()
    print_report(REPORT, plain_console(stream))
    lines = stream.getvalue().splitlines()
    assert any("F4" in line and "missed" in line and "steps made again: 45" in line for line in lines)
    assert any("F8" in line and "skipped" in line and "no kernel for it." in line for line in lines)
