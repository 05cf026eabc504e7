"""A table whose columns, categories, labels and folder look like markup goes the whole way, and is text everywhere."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.documents import EvaluationReport
from tests.test_nasty_text import COMMANDS, DIRECTIONS, NASTY, html_elements, markdown_elements

INPUT, REGION, LABEL = "[/x] <b>w</b>", "reg|ion [link=https://evil.example]", "::error::class `y`"
CLASSES = ("[/x]", "no\n# heading")
MODEL = "hostile"
"""What it is registered as, which has a form of its own; all else may be any text."""
CATEGORIES = [
    *(NASTY[name] for name in ("a closing tag of rich", "a link of rich", "colours and cursor", "directions", "lines")),
    *(
        NASTY[name]
        for name in ("elements", "a link", "an image", "cells", "commands of GitHub", "templates", "emphasis")
    ),
]
PIPELINE = {
    "pipeline": "hostile",
    "source": {"format": "csv", "include": ["*.csv"]},
    "contract": "contract.yaml",
    "shards": {
        "encoder": {"kind": "tabular", "numeric": [INPUT], "categorical": [REGION], "label": LABEL},
        "num_groups": 1,
        "split_by": "row",
        "heldout_fraction": 0.3,
    },
    "training": {
        "recipe": {"name": "tabular-classifier", "model": {"width": 16, "depth": 1}},
        "schedule": {"warmup_steps": 2},
        "max_steps": 30,
        "global_batch_sequences": 32,
        "micro_batch_sequences": 16,
        "checkpoints": {"every_steps": 30},
    },
    "launch": {"nodes": 1},
    "evaluation": {"bootstrap_resamples": 100, "slices": [REGION]},
    "registry": {"model": MODEL},
}
CONTRACT = {
    "name": "hostile",
    "version": "1.0.0",
    "description": "[/x] <script>alert(1)</script>",
    "columns": {
        INPUT: {"type": "double"},
        REGION: {"type": "string", "in": CATEGORIES},
        LABEL: {"type": "string", "in": list(CLASSES)},
    },
}


def project(root: Path) -> SimpleNamespace:
    folder = root / "da[x]ta ::add-mask::x `y`"
    folder.mkdir()
    draw = random.Random(0)
    with (folder / "[link=x]a.csv").open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow([INPUT, REGION, LABEL])
        for number in range(1200):
            of = draw.randrange(2)
            write.writerow([draw.gauss(3 * of, 1), CATEGORIES[number % len(CATEGORIES)], CLASSES[of]])
    source = {**PIPELINE["source"], "uri": folder.name}
    (root / "contract.yaml").write_text(yaml.safe_dump(CONTRACT, sort_keys=False))
    (root / "pipeline.yaml").write_text(yaml.safe_dump({**PIPELINE, "source": source}, sort_keys=False))
    return SimpleNamespace(pipeline=root / "pipeline.yaml", workspace=root / "workspace")


@pytest.mark.long
def test_a_retrain_and_a_promotion_take_no_text_of_the_data_or_of_a_person_for_anything_else(
    tmp_path: Path, retrain_here: Callable[..., Any], here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = project(tmp_path)
    summary, _ = retrain_here(case, may_promote=False, note="[/x] note")
    assert summary.version == "1" and not summary.is_champion
    report = EvaluationReport.from_bytes(
        next(case.workspace.glob("documents/evaluation/*.json")).read_bytes(), where=""
    )
    assert sum(name.startswith(REGION) for name in report.slice_sizes) == len(CATEGORIES), "each is judged by itself"

    monkeypatch.chdir(tmp_path)
    why = "[/x] \x1b[31m<b>\n## h ::error::x https://evil.example"
    said = []
    for words in (
        ("plan", "pipeline.yaml"),
        ("contract", "check", "pipeline.yaml", "--report", "report.html"),
        ("promote", MODEL, "1", "--why", why),
        ("hold", "pipeline.yaml", "--why", why),
        ("status",),
        ("history", MODEL),
        ("shards", "pipeline.yaml"),
        ("verify", f"models:/{MODEL}@champion"),
    ):
        done = here(*words)
        assert done.returncode == 0, (words, done.stderr)
        said.append(done.stdout + done.stderr)
    assert any("v1" in each and "\\x1b[31m<b>" in each for each in said), "the reason is in the history"
    for text in said:
        assert not [each for each in text if not each.isprintable() and each != "\n"]
        assert not DIRECTIONS.search(text) and not COMMANDS.search(text)

    cards, pages = [*case.workspace.glob("cards/*/*.md")], [*case.workspace.glob("reports/*.html")]
    assert len(cards) == 1 and len(pages) == 2
    found = markdown_elements(cards[0].read_text())
    assert not [each for each in found if each.startswith(("link", "image", "<"))]
    for page in (*pages, tmp_path / "report.html"):
        elements = html_elements(page.read_text())
        assert {tag for tag, *_ in elements}.isdisjoint({"script", "img", "w", "comment"})
        links = [re.fullmatch(r'<a href="([\w./-]+)"', link) for link in re.findall(r"<a\b[^>]*", page.read_text())]
        targets = [None if link is None else (page.parent / link[1]).resolve() for link in links]
        assert all(target and target.is_relative_to(case.workspace) for target in targets), "to the workspace alone"
        assert all(target.exists() for target in targets if target), "to what is there"
        assert not [names for _, *names in elements if any(name.startswith("on") for name in names)]
