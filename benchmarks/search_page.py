"""How soon the page of a search of a thousand trials is drawn in a browser.

`python -m benchmarks.search_page [--trials 1000] [--times 5] [--json]`

Six settings and three rungs, opened from a file in headless Chromium, anew each time. It needs
`pip install 'headway[screenshots]'` and a Chromium of the system's.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, show
from docs.screenshots import QUIET, chromium
from headway.flows.report.summary import RetrainSummary
from headway.flows.trials.search_page import render_html
from headway.flows.trials.summary import TrialRow, TrialsSummary

RUNGS = (60, 180, 540)
DRAWN_MS = """async () => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now();
}"""
"""Since the page was asked for: the second frame after it was loaded is on the screen."""

NOTHING_MORE: dict[str, Any] = {"reports": {}}
"""What the page says of the model that is kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    page = render_html(_searched(arguments.trials), time.time())
    rendered_s = time.perf_counter() - began_s
    drawn_s = statistics.median(_drawn_s(page, arguments.times))
    what = f"the page of a search of {arguments.trials:,} trials"
    show(
        [
            Figure(name=f"{what}, from opening to drawn", value=drawn_s, ratio_to="a second", target="<= 1"),
            Figure(name="making it", value=rendered_s, unit="s"),
            Figure(name="its size", value=len(page.encode()) / 1e6, unit="MB"),
        ],
        title="Page of a search",
        as_json=arguments.json,
        libraries=("playwright",),
    )


def _drawn_s(page: str, times: int) -> list[float]:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as folder, sync_playwright() as player:
        file = Path(folder) / "trials.html"
        file.write_text(page, encoding="utf-8")
        browser = player.chromium.launch(executable_path=chromium(), args=list(QUIET))
        found = []
        for _ in range(times):
            window = browser.new_page(viewport={"width": 1280, "height": 800})
            window.goto(file.as_uri())
            found.append(float(window.evaluate(DRAWN_MS)) / 1000)
            window.close()
        browser.close()
    return found


def _searched(num: int) -> TrialsSummary:
    rng = random.Random(0)
    rows = [_row(number, rng) for number in range(1, num + 1)]
    spent = sum(row.steps for row in rows)
    return TrialsSummary(
        pipeline="nightly",
        metric="log_loss",
        greater_is_better=False,
        num_ranking_examples=1000,
        levels=list(RUNGS),
        trials=rows,
        steps_spent=spent,
        steps_saved=RUNGS[-1] * num - spent,
        is_decided=True,
        verdict="decided",
        keep="training: {optimizer: {lr: 0.01}}",
        best=RetrainSummary.model_construct(**NOTHING_MORE),
    )


def _row(number: int, rng: random.Random) -> TrialRow:
    lr = 10 ** rng.uniform(-4, -1)
    value = abs(math.log10(lr) + 2) + rng.uniform(0.1, 0.2)
    reached = RUNGS[: 1 + (rng.random() < 1 / 3) + (rng.random() < 1 / 9)]
    is_ended = len(reached) == len(RUNGS)
    return TrialRow(
        trial=number,
        round=(number - 1) // 50,
        settings={
            "optimizer.lr": lr,
            "optimizer.weight_decay": rng.uniform(0.0, 0.2),
            "optimizer.kind": rng.choice(("adamw", "muon", "sgd")),
            "recipe.model.width": rng.choice((32, 64, 128)),
            "recipe.model.depth": rng.randint(2, 8),
            "recipe.model.dropout": rng.uniform(0.0, 0.5),
        },
        run=f"{number:016x}",
        steps=reached[-1],
        rungs={step: value * 0.9**place for place, step in enumerate(reached)},
        value=value * 0.81 if is_ended else None,
        low=value * 0.8 if is_ended else None,
        high=value * 0.82 if is_ended else None,
    )


if __name__ == "__main__":
    main()
