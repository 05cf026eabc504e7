"""A name in the history says who vouches for it; what anybody may claim is marked as a claim."""

from __future__ import annotations

import os
import pwd
import socket

import pytest

from headway.tasks.core.identity import CLAIMED_BY, current_user

ACCOUNT = pwd.getpwuid(os.getuid()).pw_name
HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def no_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLAIMED_BY:
        monkeypatch.delenv(name, raising=False)


def test_the_account_is_the_kernels_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ceo")
    assert current_user() == f"{ACCOUNT}@{HOST} (OS), says ceo (environment)"


@pytest.mark.parametrize("name", [None, ACCOUNT])
def test_a_claim_that_says_no_more_than_the_account_is_left_out(monkeypatch, name: str | None) -> None:
    if name is not None:
        monkeypatch.setenv("LOGNAME", name)
    assert current_user() == f"{ACCOUNT}@{HOST} (OS)"


def test_who_stands_behind_sudo_and_ci_is_told_before_the_accounts_own_variables(monkeypatch) -> None:
    monkeypatch.setenv("LOGNAME", "ceo")
    monkeypatch.setenv("SUDO_USER", "alice")
    assert current_user().endswith("says alice (environment)")


def test_an_account_without_a_name_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_242_424)
    assert current_user() == f"uid 4242424@{HOST} (OS)"
