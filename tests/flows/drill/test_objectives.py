"""What a drill is held against: all ten modes have alert, runbooks, objectives; what is not measured is missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, TrainingFailed
from headway.flows.drill.objectives import MODES, DrillObjective, evaluate
from headway.flows.drill.report import DrillReport, DrillResult, Figure
from headway.flows.drill.running import DRILLS, problem_of, run_drills
from headway.flows.monitoring.alerts import ALERTS
from headway.training.launch.base.gang import LaunchSpec

HOME = Path(__file__).resolve().parents[3]


def reported(**states: str) -> DrillReport:
    drills = [DrillResult(mode=mode, title="", state=state) for mode, state in states.items()]  # type: ignore[arg-type]
    about = {"headway": "0", "host": "h", "launcher": "local", "seed": 3}
    return DrillReport(**about, begin_unix_s=0.0, end_unix_s=1.0, drills=drills)  # type: ignore[arg-type]


def test_there_is_a_drill_an_alert_and_a_runbook_for_each_of_the_ten_modes() -> None:
    assert [*MODES] == [*DRILLS] == [f"F{number}" for number in range(1, 11)]
    alerts = {alert.name for alert in ALERTS}
    for mode in MODES.values():
        assert mode.alert in alerts
        for place in mode.runbooks:
            page, _, anchor = place.partition("#")
            headings = re.findall(r"^#+ (.+)$", (HOME / page).read_text(), re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, place


@pytest.mark.parametrize(
    ("most", "measured", "is_met"),
    [
        (5.0, 5, True),
        (5.0, 5.001, False),
        (5.0, None, False),
        (5.0, -0.1, False),
        (1, True, False),
        (0, False, False),
        (None, True, True),
        (None, False, False),
        (None, None, False),
        (None, 1, False),
    ],
)
def test_a_figure_meets_its_limit_or_is_a_yes_and_nothing_else_does(
    most: float | None, measured: Figure, is_met: bool
) -> None:
    (judged, _) = evaluate([DrillObjective("x_s", "x", most)], {"x_s": measured})
    assert judged.is_met is is_met


def test_that_nobody_is_left_is_asked_of_every_drill() -> None:
    judged = evaluate([], {"processes_left": 1})
    assert [(each.figure, each.is_met) for each in judged] == [("processes_left", False)]


def test_a_missed_objective_is_an_exit_code_and_what_was_skipped_is_never_passed() -> None:
    missed = problem_of(reported(F1="passed", F4="missed", F7="missed", F8="skipped"))
    assert isinstance(missed, TrainingFailed) and missed.exit_code == 6
    assert missed.what == "F4, F7 missed an objective." and "headway drill F4 F7 --seed 3 --keep" in missed.advice
    assert problem_of(reported(F1="passed", F8="skipped")) is None
    assert isinstance(problem_of(reported(F8="skipped")), EnvironmentProblem)


def test_what_takes_a_connection_or_an_interpreter_has_another_limit_on_other_machines() -> None:
    figures = {"x_s": 9.0}
    objectives = [DrillObjective("x_s", "x", 5.0, "s", 30.0)]
    assert [evaluate(objectives, figures, launcher)[0].is_met for launcher in ("local", "ssh")] == [False, True]
    assert evaluate(objectives, figures, "ssh")[0].limit == 30.0


def test_what_a_launcher_does_not_allow_is_refused_by_name_before_anything_is_made(tmp_path: Path) -> None:
    """And one host is too few for two nodes."""
    keep = tmp_path / "kept"
    for hosts, codes, message in (
        (["a", "b"], ["F4", "F8"], r"not with launcher ssh: F8: it shares a processor of this machine"),
        (["a"], ["F4"], "a drill has 2 nodes, and `ssh.hosts` names 1"),
    ):
        launch = LaunchSpec.model_validate({"launcher": "ssh", "nodes": 1, "ssh": {"hosts": hosts}})
        with pytest.raises(ConfigError, match=message):
            run_drills(codes, 1, launch=launch, keep=keep)
    assert not keep.exists()
