"""A deployed run holds a slot of its deployment's limit, by a lease that a server may forget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm_programs import run_program

TOY = Path(__file__).parent / "toys" / "forgotten_slot.py"


@pytest.mark.parametrize("is_away", [False, True], ids=["forgotten", "away"])
def test_a_run_whose_slot_the_server_does_not_renew_goes_on_and_says_so_once(service: Any, is_away: bool) -> None:
    environment = service.environment | ({"PREFECT_API_URL": "http://127.0.0.1:9/api"} if is_away else {})
    done = run_program((sys.executable, TOY), env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    told, *rest = done.stdout.splitlines()
    assert "does not renew this run's slot" in told and rest == ["went on"]
