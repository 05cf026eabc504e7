"""What is installed is what was tested, to the byte: each package of the locks has digests and the tested version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")
LOCKS = ("development", "image", "torch")


def pins(path: Path) -> dict[str, str]:
    found = (PIN.match(line) for line in path.read_text().splitlines())
    return {re.sub(r"[-_.]+", "-", pin[1]).lower(): pin[2] for pin in found if pin}


def entries(name: str) -> list[str]:
    """Each requirement of a lock with the lines that continue it."""
    return (HOME / "locks" / f"{name}.txt").read_text().replace("\\\n", " ").strip().splitlines()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_is_pinned_and_has_digests(lock: str) -> None:
    bare = [line for line in entries(lock) if not (PIN.match(line) and re.search(r"--hash=sha256:[0-9a-f]{64}", line))]
    assert not bare


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_the_tested_versions(lock: str) -> None:
    tested, locked = pins(HOME / "constraints.txt"), pins(HOME / "locks" / f"{lock}.txt")
    assert {name: locked[name] for name in tested.keys() & locked.keys() if locked[name] != tested[name]} == {}


def test_the_development_lock_holds_what_is_asked_for() -> None:
    locked = pins(HOME / "locks" / "development.txt") | pins(HOME / "locks" / "torch.txt")
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", each)[0]).lower() for each in asked}
    assert names <= locked.keys()


@pytest.mark.parametrize(
    ("file", "lock"), [("Makefile", "development"), ("Makefile", "torch"), ("deployments/docker/Dockerfile", "image")]
)
def test_installing_holds_every_package_against_its_digest(file: str, lock: str) -> None:
    installs = [line for line in (HOME / file).read_text().splitlines() if f"locks/{lock}.txt" in line]
    assert any("--require-hashes" in line and "--no-deps" in line for line in installs)


def test_the_shipped_workflow_holds_every_package_against_its_digest() -> None:
    workflow = yaml.safe_load((HOME / "deployments" / "github" / "headway.yml").read_text())
    assert workflow["env"]["LOCK"] == "locks/image.txt"
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    installs = [line for step in steps for line in step.splitlines() if "pip install" in line]
    assert len(installs) == 4, "of what it needs, and of itself, in both jobs"
    assert all("--no-deps" in line for line in installs)
    assert all(line.endswith(('--require-hashes --requirement "$LOCK"', "--no-build-isolation .")) for line in installs)
