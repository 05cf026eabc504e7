"""Profiles, and what a wrong one is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import find_pipeline_file, load_pipeline
from headway.flows.config.profiles import load_profile
from headway.flows.console.pipeline_names import pipeline_files, pipeline_name

REPOSITORY = Path(__file__).resolve().parents[3]


def profiles(folder: Path, text: str) -> Path:
    (folder / "deployments").mkdir()
    (folder / "deployments" / "profiles.yaml").write_text(text)
    return folder


def refusal(folder: Path, name: str = "production") -> str:
    with pytest.raises(ConfigError) as refused:
        load_profile(folder, name)
    assert "profiles.yaml" in refused.value.where
    return str(refused.value)


def test_the_shipped_profiles_share_a_server_without_sharing_a_name() -> None:
    loaded = [load_profile(REPOSITORY, name) for name in ("dev", "staging", "production")]
    assert len({project for project, _ in loaded}) == 1
    assert len({profile.suffix for _, profile in loaded}) == len({profile.pool.name for _, profile in loaded}) == 3
    assert [profile.schedules_active for _, profile in loaded] == [False, False, True]


def test_profiles_are_no_pipeline(tmp_path: Path) -> None:
    folder = profiles(tmp_path, "project: acme\nprofiles: {production: {pool: {name: p}}}\n")
    assert pipeline_files(folder) == []
    with pytest.raises(ConfigError, match="there is none here"):
        find_pipeline_file("nightly", folder)


def test_what_contract_init_drafts_may_lie_among_the_pipeline_files_as_it_is_called(tmp_path: Path) -> None:
    folder = profiles(tmp_path, "project: acme\nprofiles: {production: {pool: {name: p}}}\n")
    drafted = folder / "deployments" / "churn.pipeline.yaml"
    for path in (drafted, folder / "deployments" / "churn.contract.yaml"):
        path.write_text("")
    assert pipeline_files(folder) == [drafted] and pipeline_name(drafted) == "churn"
    assert find_pipeline_file("churn", folder) == drafted.resolve()
    with pytest.raises(ConfigError, match=r"or a name: churn\."):
        find_pipeline_file("nightly", folder)


@pytest.mark.parametrize("deployed", ["churn.yaml", "churn.pipeline.yaml"])
def test_a_draft_that_stayed_behind_is_not_trained_in_place_of_what_is_deployed(tmp_path: Path, deployed: str) -> None:
    folder = profiles(tmp_path, "project: acme\nprofiles: {production: {pool: {name: p}}}\n")
    for path in (folder / "churn.pipeline.yaml", folder / "deployments" / deployed):
        path.write_text("")
    with pytest.raises(ConfigError, match=f"deployments/{deployed} is called 'churn', too") as refused:
        find_pipeline_file("churn", folder)
    assert refused.value.where == str(folder / "churn.pipeline.yaml") and refused.value.advice
    for path in ("churn.pipeline.yaml", f"deployments/{deployed}"):
        assert find_pipeline_file(path, folder) == (folder / path).resolve()
    (folder / "churn.pipeline.yaml").unlink()
    assert find_pipeline_file("churn", folder) == (folder / "deployments" / deployed).resolve()


def test_an_unknown_profile_is_told_which_there_are(tmp_path: Path) -> None:
    text = "project: acme\nprofiles: {production: {pool: {name: p}}, dev: {pool: {name: q}}}\n"
    assert "There are: dev, production." in refusal(profiles(tmp_path, text), "prod")


def test_a_pipe_in_the_place_of_profiles_or_of_a_pipeline_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    os.mkfifo(tmp_path / "deployments" / "profiles.yaml")
    assert "a pipe, not a file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "deployments" / "nightly.yaml")
    (found,) = pipeline_files(tmp_path)
    with pytest.raises(ConfigError, match="a pipe, not a file"):
        load_pipeline(found)


def test_a_missing_file_says_how_a_short_one_reads(tmp_path: Path) -> None:
    assert "project: my-team" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("branch", "told"),
    [
        ("env: {WANDB_API_KEY: abc}", "WANDB_API_KEY reads like a secret"),
        ("env: {PGPASSWORD: abc}", "PGPASSWORD reads like a secret"),
        ("env: {OPENAI_KEY: abc}", "OPENAI_KEY reads like a secret"),
        ("env: {PLAIN: ghp_abcdefghijklmnop1234}", "PLAIN holds an issued token"),
        ("env: {PLAIN: 'AccountName=a;AccountKey=abcdef=='}", "PLAIN holds an issued token"),
        ("variables: {plain: [{x: ghp_abcdefghijklmnop1234}]}", "plain holds an issued token"),
        ("variables: {plain: {password: abc}}", "plain reads like a secret"),
        ("variables: {plain: {password: {a: 1}}}", "plain reads like a secret"),
        ("variables: {dbpassword: abc}", "dbpassword reads like a secret"),
        ("env: {DB_PASSWORD: abc}", "DB_PASSWORD reads like a secret"),
        ("variables: {slack_token: abc}", "slack_token reads like a secret"),
        ("variables: {Team-Name: abc}", "lower case, digits and underscores"),
        ("variables: {since: 2026-01-01}", "since is no JSON value"),
        ("variables: {most: .nan}", ".nan is no finite number"),
        ("env: {'A=B': abc}", "'A=B': a variable's name"),
        ("env: {DB_URL: 'postgresql://me:abc@db/shop'}", "DB_URL holds a URL with credentials"),
        ("env: {LIBPQ: 'host=db user=me password=abc'}", "LIBPQ holds what 'password' is"),
        ("env: {OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Basic abc'}", "holds what 'authorization' is"),
        ("tags: [a, 'https://me:abc@db/shop']", "one holds something before an `@`"),
        ("tags: ['token=abc']", "one holds what 'token' is"),
        ("pool: {name: a/b}", "pool.name"),
        *(
            (f'pool: {{name: "a{end}name: b"}}', "pool.name")
            for end in (r"\n", r"\r", r"\u2028", r"\x85", r"\0", r"\e")
        ),
        ("limits: {gpus: 0}", "give at least 1"),
        ("heartbeat_s: 29", "greater than or equal to 30"),
        ("scheduled: true", "unknown key `scheduled`"),
        ("notify: my-block", "notify"),
        ("notify_tickets: slack-webhook/day", "goes with `notify`"),
        ("notify: none, notify_tickets: slack-webhook/day", "goes with `notify`"),
    ],
)
def test_what_a_profile_may_not_say(tmp_path: Path, branch: str, told: str) -> None:
    pool = "" if branch.startswith("pool") else "pool: {name: p}, "
    assert told in refusal(profiles(tmp_path, f"project: acme\nprofiles: {{production: {{{pool}{branch}}}}}"))


@pytest.mark.parametrize(
    ("branch", "blocks"),
    [
        ("", {}),
        ("notify: none", {}),
        ("notify: a/b", {"page": "a/b", "ticket": "a/b"}),
        ("notify: a/b, notify_tickets: c/d", {"page": "a/b", "ticket": "c/d"}),
    ],
)
def test_tickets_go_where_pages_go_unless_another_block_is_named(tmp_path: Path, branch: str, blocks) -> None:
    text = f"project: acme\nprofiles: {{production: {{pool: {{name: p}}, {branch}}}}}"
    assert load_profile(profiles(tmp_path, text), "production")[1].blocks == blocks


def test_a_secret_may_be_left_to_the_worker_by_name(tmp_path: Path) -> None:
    text = "project: acme\nprofiles: {production: {pool: {name: p}, env: {WANDB_API_KEY: null}}}"
    assert load_profile(profiles(tmp_path, text), "production")[1].env == {"WANDB_API_KEY": None}
