"""What a machine lacks is told with what to do: the tests that need it are skipped by these words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster import prerequisites
from tests.cluster.prerequisites import why_no_hosts, why_no_monitoring, why_no_slurm


def test_who_is_not_root_is_told_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_no_hosts() == why_no_slurm() == "only root can do this: run `make test-cluster` as root"


def test_missing_programs_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(prerequisites, "SYSTEM_PATH", str(tmp_path))
    assert why_no_slurm().startswith("not installed: munged, slurmctld, ")
    assert why_no_hosts().startswith("not installed: ip, tc, nft, ")
    assert why_no_monitoring().startswith("not installed: prometheus, promtool, ")
    assert "tests/cluster/install.sh" in why_no_hosts() and Path(__file__).with_name("install.sh").exists()


def test_what_the_kernel_refuses_is_told_in_its_own_words() -> None:
    if reason := why_no_hosts("true"):
        pytest.skip(reason)
    assert "(RTNETLINK answers: Not supported)" in why_no_hosts("echo RTNETLINK answers: Not supported >&2; exit 2")
