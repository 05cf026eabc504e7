"""`headway reproduce`: a registered version trained again to the same bits, beside all that is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from headway.flows.act.reproduce import reproduce_model

MODEL = "models:/tiny@champion"
CHANGING = ("reproductions", "sessions")
"""Folders that a reproduction may write to."""


def kept(project) -> dict[str, tuple[int, int]]:
    """Every file of the workspace that no reproduction may touch: size and when it was written."""
    found = {path.relative_to(project.workspace): path.stat() for path in project.files("**/*")}
    return {
        name.as_posix(): (its.st_size, its.st_mtime_ns)
        for name, its in found.items()
        if name.parts[0] not in CHANGING and name.name != "digest-cache.json"
    }


def steps_done(project) -> int:
    attempts = sorted(project.workspace.glob("reproductions/*/attempts/*"))
    steps = (
        [event["step"] for event in project.rank_events(attempts[-1]) if event["event"] == "step"] if attempts else []
    )
    return max(steps, default=0)


@pytest.fixture
def command(here, project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    monkeypatch.chdir(project.root)
    return here


@pytest.mark.long
def test_a_version_is_trained_again_to_the_same_bits_over_a_kill_and_nothing_kept_is_touched(
    project, command, forked_gangs, wait_until
) -> None:
    before = kept(project)
    broken_off = project.start("reproduce", MODEL)
    wait_until(lambda: steps_done(project) >= 25 or broken_off.poll() is not None)
    os.kill(broken_off.pid, signal.SIGKILL)
    out, err = broken_off.communicate()
    assert broken_off.returncode == -signal.SIGKILL, err
    assert "MB for checkpoints" in out, "the need of disk is said before a step is taken"

    message = json.loads(reproduce_model(MODEL, str(project.workspace), again=False, as_json=True).model_dump_json())
    made = message["reproduction"]
    assert (message["version"], message["agrees"], message["is_promised"]) == ("1", True, True)
    assert made["reproduced_tensors_sha256"] == made["registered_tensors_sha256"] == project.result()["tensors_sha256"]
    assert (made["tensors"], made["changed"], made["first_step_apart"], made["step"]) == ([], [], None, 120)
    (figure,) = made["figures"]
    assert figure["figure"] == "bits_per_byte" and figure["registered"] == figure["reproduced"]
    attempts = sorted(project.workspace.glob("reproductions/*/attempts/*"))
    (restored,) = (event for event in project.rank_events(attempts[1]) if event["event"] == "restore")
    assert restored["step"] >= 20, "it went on from a checkpoint of its own"
    assert not project.files("reproductions/*/checkpoints/step-00000100/*"), "it saves by time, not by steps"
    assert kept(project) == before
    assert command("verify", MODEL).returncode == 0
    wait_until(lambda: project.everybody() == [])


@pytest.mark.long
def test_other_bits_end_with_a_code_of_their_own_and_say_which_differ_and_what_else_does(project) -> None:
    project.settings["ATEN_CPU_CAPABILITY"] = "default"
    done = project.headway("reproduce", MODEL, "--json")
    assert done.returncode == 10, done.stderr
    assert "came to other bits" in done.stderr and "cpu_capability" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    message = json.loads(done.stdout.splitlines()[-1])
    made = message["reproduction"]
    assert (message["agrees"], message["is_promised"]) == (False, False)
    assert [change["what"] for change in made["changed"]] == ["cpu_capability"]
    assert made["reproduced_tensors_sha256"] != made["registered_tensors_sha256"]
    assert all(0 < apart["num_differing"] <= apart["num_values"] for apart in made["tensors"]) and made["tensors"]
    assert made["first_step_apart"] >= 1


@pytest.mark.parametrize(
    ("pattern", "code"), [("shards/**/*.parquet", 5), ("code/*.zip", 5), ("documents/run/*.json", 5)]
)
def test_a_version_that_lacks_something_is_refused_by_its_name_before_a_rank_starts(
    project, command, pattern: str, code
) -> None:
    lost = project.files(pattern)[0]
    lost.unlink()
    done = command("reproduce", MODEL)
    assert done.returncode == code
    assert lost.name in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(project.workspace.glob("reproductions/*/attempts"))
