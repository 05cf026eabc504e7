"""Whether a Prefect server is configured is told without Prefect, and never otherwise than Prefect would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.flows.console.prefect_settings import names_no_server

PROFILES = """
active = "mine"
[profiles.mine]
{}
[profiles.other]
PREFECT_API_URL = "http://127.0.0.1:4200/api"
"""
CASES: tuple[tuple[str | None, dict[str, str]], ...] = (
    (None, {}),
    (PROFILES.format(""), {}),
    (PROFILES.format('PREFECT_API_URL = "http://127.0.0.1:4201/api"'), {}),
    (None, {"prefect_api_url": "http://127.0.0.1:4202/api"}),
    (None, {"PREFECT_PROFILE": "local"}),
    (PROFILES.format(""), {"PREFECT_PROFILE": "other"}),
)
"""Prefect's profiles, and what the environment says besides."""
ASKED = """
import json, os, sys
from headway.flows.console.environment import prepare
prepare()
from headway.flows.console.prefect_settings import names_no_server
ours, theirs, given, plain = [], [], json.loads(sys.argv[1]), dict(os.environ)
for each in given:
    os.environ.clear()
    os.environ.update({**plain, **each})
    ours.append(names_no_server())
is_loaded = "prefect" in sys.modules
from prefect.context import root_settings_context
for each in given:
    os.environ.clear()
    os.environ.update({**plain, **each})
    theirs.append(root_settings_context().settings.api.url)
print(json.dumps([is_loaded, ours, theirs]))
"""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))


def test_where_nothing_names_a_server_none_is_configured(tmp_path: Path) -> None:
    assert names_no_server()
    (tmp_path / "profiles.toml").write_text('active = "mine"\n[profiles.mine]\nPREFECT_LOGGING_LEVEL = "INFO"\n')
    assert names_no_server()


@pytest.mark.parametrize("name", ["PREFECT_API_URL", "prefect_api_url", "PREFECT_PROFILE"])
def test_a_variable_may_configure_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    assert names_no_server(), "set to nothing is not set"
    monkeypatch.setenv(name, "http://127.0.0.1:4200/api")
    assert not names_no_server()


@pytest.mark.parametrize("content", [b'PREFECT_API_URL = "', b"prefect_api_url", b"\xff PREFECT_API_URL"])
def test_profiles_that_mention_one_leave_it_to_prefect(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "profiles.toml").write_bytes(content)
    assert not names_no_server()


def test_profiles_that_cannot_be_read_leave_it_to_prefect(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").mkdir()
    assert not names_no_server()


@pytest.mark.process
def test_no_server_that_prefect_would_use_is_overlooked(tmp_path: Path) -> None:
    given = []
    for number, (profiles, environment) in enumerate(CASES):
        home = tmp_path / str(number)
        home.mkdir()
        if profiles is not None:
            (home / "profiles.toml").write_text(profiles)
        given.append({"PREFECT_HOME": str(home), **environment})
    # One process for all of them: it takes seconds to import Prefect.
    asked = subprocess.run([sys.executable, "-c", ASKED, json.dumps(given)], check=True, capture_output=True, text=True)
    is_loaded, ours, theirs = json.loads(asked.stdout)
    assert not is_loaded
    assert ours[0] and theirs[0] is None and len(set(theirs)) > 3, theirs
    assert not [case for case, url, is_none in zip(CASES, theirs, ours, strict=True) if url and is_none]


LOADED = """
from headway.flows.console.environment import prepare
prepare()
from headway.data_contracts.store.errors import HeadwayError
try:
    from prefect import flow
except HeadwayError as error:
    print(error.exit_code, error)
"""


def _load(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOADED], env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PREFECT_SERVER_API_PORT", "s3cret", "ServerAPISettings.port"),
        ("PREFECT_CLIENT_CUSTOM_HEADERS", '{"s3cret":', "custom_headers"),
        ("PREFECT_HOME", "s" * 5000, "File name too long"),
    ],
)
def test_a_setting_that_prefect_cannot_read_is_named_without_its_value(name: str, value: str, said: str) -> None:
    loaded = _load({name: value})
    assert loaded.stdout.startswith("8 Prefect's settings: ") and said in loaded.stdout
    assert "s3cret" not in loaded.stdout + loaded.stderr and not loaded.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        (b"[[[ PREFECT_API_URL", "at line 1"),
        (b"# PREFECT_API_URL \xff", "not UTF-8"),
        (b"profiles = 3 # PREFECT_API_URL", "profiles.toml"),
        (b"[profiles]\nmine = 3 # PREFECT_API_URL", "Profile.settings"),
        (b'active = "mine"\n[profiles.mine]\nPREFECT_LOGGING_LEVEL = "s3cret"', "LoggingSettings.level"),
    ],
)
def test_profiles_that_prefect_cannot_read_are_one_clear_error(tmp_path: Path, profiles: bytes, said: str) -> None:
    (tmp_path / "profiles.toml").write_bytes(profiles)
    loaded = _load({})
    assert loaded.stdout.startswith("8 Prefect's settings: ") and said in loaded.stdout, loaded
    assert "s3cret" not in loaded.stdout + loaded.stderr and not loaded.stderr


@pytest.mark.process
def test_an_installation_of_prefect_that_is_broken_is_no_fault_of_its_settings(tmp_path: Path) -> None:
    """Such as beside a package of another version: whoever mends settings would look in the wrong place."""
    package = tmp_path / "prefect"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nprint('a warning', file=sys.stderr)\n")
    (package / "context.py").write_text("import pydantic\npydantic.no_such_name\n")
    script = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{LOADED}"
    broken = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert broken.returncode == 1 and "no_such_name" in broken.stderr.splitlines()[-1]
    assert "a warning" in broken.stderr and not broken.stdout
