"""Markdown that GitHub renders as meant, and JUnit XML of the schema that build servers read."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from headway.flows.ci.pages import junit_page, markdown
from headway.flows.ci.results import CiCheckResult, CiReport

NASTY = "a | b <script> @everybody *x* `y` & z\x00\x1b\ud800"
SUITE_KEYS = {"name", "tests", "failures", "errors", "skipped", "time"}


def report() -> CiReport:
    failed = CiCheckResult(
        check="config", outcome="failed", reason=f"2 problems:\n  - {NASTY}", cause="config", exit_code=2
    )
    passed = CiCheckResult(check="contract", outcome="passed", reason="fine", details=(NASTY,), duration_s=1.25)
    skipped = CiCheckResult(check="recipe", outcome="skipped", reason=NASTY)
    return CiReport(pipeline="deployments/tiny_lm.yaml", base="main", results=(passed, failed, skipped))


def test_text_of_others_can_break_neither_table_nor_markup_nor_call_anybody() -> None:
    lines = markdown(report()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 4 and all(row.replace("\\|", "").count("|") == 5 for row in rows)
    page = "\n".join(lines)
    assert "<script>" not in page and "@" not in page and page.count("<details") == page.count("</details>") == 2
    assert "<details open><summary>config</summary>" in page


def test_a_long_list_is_cut_and_says_so() -> None:
    long = CiCheckResult(check="contract", outcome="passed", reason="fine", details=tuple(map(str, range(1000))))
    page = markdown(CiReport(pipeline="tiny", base="", results=(long,)))
    assert "- and 900 more" in page and len(page.splitlines()) < 130


def test_junit_has_the_elements_attributes_and_counts_of_the_schema() -> None:
    root = ET.fromstring(junit_page(report()).encode(errors="strict"))
    assert root.tag == "testsuites" and set(root.attrib) <= SUITE_KEYS
    (suite,) = root
    assert suite.tag == "testsuite" and set(suite.attrib) == SUITE_KEYS
    cases = list(suite)
    assert {case.tag for case in cases} == {"testcase"}
    for case in cases:
        assert set(case.attrib) == {"classname", "name", "time"} and float(case.get("time")) >= 0
        (only,) = case
        assert only.tag in ("failure", "skipped", "system-out")
    count = {tag: len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "skipped")}
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "1"]
    assert count == {"failure": 1, "skipped": 1}
    assert float(suite.get("time")) == sum(float(case.get("time")) for case in cases) == 1.25
