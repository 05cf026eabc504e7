"""What pages show of the terminal is what it prints: made again, from what each line says, by what prints it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Interval
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.report.summary import RetrainSummary
from headway.flows.report.terminal import NOTICES, STAGE_WIDTH, Terminal, notice_line, step_line
from headway.tasks.registry.evaluation_report import OWN, Contestant
from headway.training.config.optimizer import learning_rate_line
from tests.pages import HOME, blocks

README, TUTORIAL = HOME / "README.md", HOME / "docs" / "tutorial.md"
BETWEEN = re.compile(r" {3}")
FIGURE = r"-?[\d.,]+"
WITH_INTERVAL = re.compile(rf"(.+?) ({FIGURE}) \[({FIGURE}), ({FIGURE})\]")
ALONE = re.compile(rf"(.+?) ({FIGURE})")
STEP = re.compile(
    r"step +(?P<step>\d+)/(?P<max>\d+) +loss (?P<loss>\S+) +lr (?P<lr>\S+) +tok/s +(?P<rate>\S+) "
    r"+sync +(?P<sync>\d+) % +ETA +(?P<eta>\d+) s"
)
STAGE = re.compile(r"(?P<stage>\w+) +(?P<state>made|found) +(?P<time>[\d.]+) s(?:   (?P<shown>.+))?")


def texts(page: Path) -> list[str]:
    return [text for language, text in blocks(page) if language == "text"]


def lines_before_the_summary() -> list[str]:
    shown = [text.partition("\n\n")[0].splitlines() for text in texts(README)]
    return [line for lines in shown for line in lines if line != "..."]


@pytest.mark.parametrize("line", lines_before_the_summary())
def test_a_line_of_a_stage_a_step_or_a_notice_is_printed_so(line: str) -> None:
    if found := STEP.fullmatch(line):
        event = {
            **{"event": "step", "step": int(found["step"]), "max_steps": int(found["max"]), "duration_s": 1.0},
            **{"loss": float(found["loss"]), "lr": float(found["lr"]), "sync_s": int(found["sync"]) / 100},
        }
        assert step_line(event, float(found["rate"].replace(",", "")), float(found["eta"])) == line
    elif found := STAGE.fullmatch(line):
        event = {"event": f"stage.{found['stage']}", "outcome": "ok", "found": found["state"] == "found"}
        event |= {"duration_s": float(found["time"]), "shown": found["shown"] or ""}
        assert notice_line(event) == line
    else:
        label, message = line[:STAGE_WIDTH].rstrip(), line[STAGE_WIDTH + 1 :]
        names = [name for name, each in NOTICES.items() if each == label]
        assert [notice_line({"event": name, "message": message}) for name in names] == [line] * len(names) != []


def test_the_lines_that_come_before_the_first_step_are_all_there() -> None:
    training = load_pipeline(HOME / "deployments" / "stdlib-lm.yaml").training
    rates = learning_rate_line(
        training.optimizer,
        training.schedule,
        global_batch=training.global_batch_sequences,
        max_steps=training.max_steps,
    )
    lines = lines_before_the_summary()
    assert f"{'rates':<{STAGE_WIDTH}} {rates}" in lines
    assert {"batch", "length"} <= {line.partition(" ")[0] for line in lines}


@pytest.mark.parametrize(
    ("page", "rivals"),
    [
        (README, {"xz -9 (for scale)", "bigram (to be beaten)"}),
        (TUTORIAL, {"class prior (to be beaten)", "linear model (for scale)", "boosted trees (for scale)"}),
    ],
)
def test_a_summary_is_printed_so(page: Path, rivals: set[str]) -> None:
    (text,) = (text for text in texts(page) if " version 1: champion since " in text)
    shown = text[text.index(next(line for line in text.splitlines() if " version 1: " in line)) :].splitlines()
    shown = [line for line in shown if line != "  ..."]
    made, best_first = summary_of(shown)
    stream = io.StringIO()
    Terminal(stream).summary(made)
    printed = stream.getvalue().splitlines()[1:]
    # A command is named as it was called, and of the last lines some are left out.
    assert printed[: len(shown)] == shown or [*printed[: len(shown) - 1], shown[-1]] == shown
    assert {each.name for each in best_first} == {OWN, *rivals}
    assert [f"{each.name} {each.text}" for each in best_first] == made.leaderboard


def summary_of(shown: list[str]) -> tuple[RetrainSummary, list[Contestant]]:
    """What printed these lines, as far as they say it."""
    model, version, since = re.fullmatch(r"(\S+) version (\d+): champion since (\S+)", shown[0]).groups()  # type: ignore[union-attr]
    own, *others, count = BETWEEN.split(shown[2].strip())
    metric, value, low, high = WITH_INTERVAL.fullmatch(own).groups()  # type: ignore[union-attr]
    best_first = [contestant(part) for part in BETWEEN.split(shown[3].removeprefix("  best first "))]
    paths = dict(re.findall(r"^  (\w+)? +(\S+/\S+)$", "\n".join(shown[4:]), re.MULTILINE))
    made = RetrainSummary(
        **{"pipeline": model, "workspace": "workspace", "model": model, "version": version, "is_champion": True},
        **{"champion_version": version, "champion_since": since, "promoted": True, "reason": shown[1].strip()},
        **{"metric": metric, "value": float(value), "low": float(low), "high": float(high)},
        num_examples=int(re.fullmatch(r"on ([\d,]+) held-out examples", count)[1].replace(",", "")),  # type: ignore[index]
        other_metrics={name: float(number) for name, number in (ALONE.fullmatch(each).groups() for each in others)},  # type: ignore[union-attr]
        champion_value=None,
        baselines={},
        leaderboard=[f"{each.name} {each.text}" for each in best_first],
        registration="0" * 64,
        stages_found=[],
        stages_run=[],
        reports={"evaluation": paths.get("reports", ""), "contract": paths.get("", ""), "card": paths.get("card", "")},
        **{"logs": paths.get("ledger", ""), "wall_s": 1.0, "time_s": {}, "unattributed_ratio": 0.0},
    )
    return made, best_first


def contestant(part: str) -> Contestant:
    if found := WITH_INTERVAL.fullmatch(part):
        value, low, high = map(float, found.groups()[1:])
        return Contestant(found[1], value, Interval(value=value, low=low, high=high), None)
    found = ALONE.fullmatch(part)
    assert found is not None, part
    return Contestant(found[1], float(found[2]), None, None)
