"""The report shows at first glance whether the data passed, needs no network, and is nobody's way in."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from headway.data_contracts.engine.quarantine import QuarantinedRow
from headway.data_contracts.report.quarantined_rows import QuarantineSample
from headway.data_contracts.report.validation_report import render_html
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.store.documents import (
    ContractReceipt,
    Distribution,
    ExpectationVerdict,
    Link,
    Snapshot,
    SourceFile,
    StoredFile,
)

CONTRACT = parse_contract(
    "name: events\nversion: 1.0.0\ndescription: Ours & yours\n"
    "columns: {path: {type: string}, size: {type: int64}, kind: {type: string, in: [a, <b>]}}\n"
    "drift: [{id: drift, columns: [size, kind], max_psi: 0.2}]",
    where="c.yaml",
)
SNAPSHOT = Snapshot(
    format="text-files",
    columns={"path": "string"},
    num_rows=1,
    files=(SourceFile(path="a.py", size_bytes=1_500_000, sha256="ab" * 32),),
)
HOSTILE = "<script>alert('x')</script>\u202e\n.py"


def receipt(*, passed: bool, quarantined: tuple[QuarantinedRow, ...] = ()) -> ContractReceipt:
    verdicts = (
        ExpectationVerdict(
            rule_id="path.pattern",
            description="path matches <.+>",
            severity="critical",
            passed=passed,
            observed="1 of 2 rows break it",
        ),
        ExpectationVerdict(rule_id="long", description="long", severity="warning", passed=False, observed="7 rows"),
        ExpectationVerdict(rule_id="rows", description="rows", severity="critical", passed=True, observed="2 rows"),
    )
    return ContractReceipt(
        contract=StoredFile(path="contracts/c.yaml", size_bytes=1, sha256="cd" * 32),
        contract_name=CONTRACT.name,
        contract_version=CONTRACT.version,
        snapshot=SNAPSHOT.link,
        passed=passed,
        num_rows=2,
        verdicts=verdicts,
        num_quarantined=len(quarantined),
        quarantine=None,
        metrics={"num_rows": 2.0, "mean": 0.25},
        baseline=Link(kind="receipt", sha256="9f" * 32),
        distributions=(
            Distribution(
                column="size",
                of="values",
                edges=(1.0, 2.0),
                num_requested=3,
                counts=(1, 2, 3),
                num_nulls=2,
                num_nans=0,
                baseline_counts=(3, 2, 1),
                baseline_num_nulls=0,
                baseline_num_nans=0,
            ),
            Distribution(
                column="kind",
                of="values",
                categories=("a", "<b>"),
                num_requested=20,
                counts=(1, 1, 0),
                num_nulls=0,
                num_nans=0,
            ),
        ),
    )


def page(*, passed: bool, quarantined: tuple[QuarantinedRow, ...] = ()) -> str:
    num_by_rule = Counter(rule for row in quarantined for rule in row.rule_ids)
    sample = QuarantineSample(num_by_rule=dict(num_by_rule), rows=quarantined)
    return render_html(receipt(passed=passed, quarantined=quarantined), CONTRACT, SNAPSHOT, sample)


class Tags(HTMLParser):
    """Checks that tags nest, and keeps their names and attributes."""

    VOID = ("meta", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("passed", [True, False])
def test_the_page_needs_nothing_else(passed: bool) -> None:
    tags = Tags()
    text = page(
        passed=passed,
        quarantined=(QuarantinedRow(path=HOSTILE, row=3, rule_ids=("utf-8",)),),
    )
    tags.feed(text)
    assert tags.open == []
    assert tags.seen.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "a", "form"} & set(tags.seen)
    assert not {"src", "href", "style", "onload"} & set(tags.attributes)
    assert not re.search(r"https?:|@import|url\(", text)
    assert "default-src 'none'" in text


def test_the_verdict_is_in_the_title_the_heading_and_words() -> None:
    assert "<title>passed: events 1.0.0</title>" in page(passed=True)
    assert "<h1>Passed</h1>" in page(passed=True)
    assert "<title>REFUSED: events 1.0.0</title>" in page(passed=False)
    assert "<h1>Refused</h1>" in page(passed=False)
    assert "✖ broken" in page(passed=False)


def test_what_broke_comes_first_and_remarks_before_the_rest() -> None:
    text = page(passed=False)
    places = [text.index(heading) for heading in ("<h1>", "What broke", "Worth a look", "What held")]
    assert places == sorted(places)
    assert "What broke" not in page(passed=True)


def test_a_refusal_says_what_to_do_next() -> None:
    assert "1 critical rule broken: <code>path.pattern</code>." in page(passed=False)
    assert "Nothing was trained" in page(passed=False)
    assert "run again" in page(passed=False).replace("\n", " ")


def test_a_hostile_file_name_is_only_text() -> None:
    text = page(passed=True, quarantined=(QuarantinedRow(path=HOSTILE, row=3, rule_ids=("utf-8",)),))
    assert "<script" not in text
    assert "\u202e" not in text
    assert r"&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;\u202e\n.py" in text


def test_the_same_receipt_gives_the_same_page() -> None:
    assert page(passed=False) == page(passed=False)


def test_of_forty_broken_rules_the_first_are_seen_with_their_rows_and_the_rest_is_folded() -> None:
    names = [f"c{number}" for number in range(40)]
    columns = ", ".join(f"{name}: {{type: double, max: 1}}" for name in names)
    contract = parse_contract(f"name: wide\nversion: 1.0.0\ncolumns: {{{columns}}}\n", where="c.yaml")
    whole = receipt(passed=False)
    broken = whole.verdicts[0]
    found = whole.model_copy(
        update={
            "verdicts": tuple(broken.model_copy(update={"rule_id": f"{name}.between"}) for name in names),
            "distributions": tuple(whole.distributions[0].model_copy(update={"column": name}) for name in names),
            "metrics": dict.fromkeys(names, 1.0),
            "num_quarantined": 120,
        }
    )
    rows = tuple(QuarantinedRow("a.csv", row, (f"c{row // 3}.between",)) for row in range(120))
    sample = QuarantineSample(num_by_rule={f"{name}.between": 3 for name in names}, rows=rows)
    text = render_html(found, contract, SNAPSHOT, sample)
    at_once = unfolded(text)
    assert len(re.findall("<article", at_once)) == 9 and len(re.findall("<article", text)) == 40
    assert at_once.count("✖ broken</span></td>") == 10 and text.count("✖ broken</span></td>") == 40
    assert "rows <code>a.csv</code> 0 to 2" in at_once and "rows <code>a.csv</code> 117 to 119" not in at_once
    assert text.index("What broke") < text.index("Columns <span")


def unfolded(page: str) -> str:
    """What is seen of a page before anybody opens anything."""
    depth, seen = 0, []
    for piece in re.split(r"(<details>|<details open>|</details>)", page):
        if piece == "<details>" or (depth and piece == "<details open>"):
            depth += 1
        elif depth and piece == "</details>":
            depth -= 1
        elif not depth:
            seen.append(piece)
    return "".join(seen)
