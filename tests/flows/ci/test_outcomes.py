"""Each outcome of `headway ci`: its exit code, its named result, and what a reviewer and a build server read of it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from headway.flows.ci import checks
from headway.flows.ci.child import BY_EXIT_CODE, _error
from headway.flows.ci.results import CHECKS
from headway.flows.cli.command_line import run as run_command
from headway.flows.config.request import CONTINUED_BY, ComparisonRequest
from tests.flows.ci.conftest import edit, git

pytestmark = pytest.mark.process

QUICK = ("contract", "config", "recipe", "encoder", "stages")
NARROWER = "{type: string, nullable: true, max_length: 3}"


def commit_with(folder: Path, file: str, old: str, new: str) -> None:
    edit(folder / file, old, new)
    git(folder, "commit", "--all", "--message", "change")


def assert_failed(answer, check: str, cause: str, code: int, message: str) -> None:
    """Exit code, JSON, Markdown and JUnit say the same."""
    assert (answer.code, answer.report["exit_code"]) == (code, code)
    assert (answer[check]["outcome"], answer[check]["cause"], answer[check]["exit_code"]) == ("failed", cause, code)
    assert message in answer[check]["reason"]
    assert answer.page.startswith("## ❌ headway ci tiny.yaml: ") and check in answer.report["verdict"]
    assert f"| {check} | ❌ failed |" in answer.page
    failure = answer.junit.find(f".//testcase[@name='{check}']/failure")
    assert failure is not None and failure.get("type") == cause and message in (failure.text or "")


def test_an_unchanged_checkout_passes_with_0_and_every_check_has_a_result(ci, checkout) -> None:
    answer = ci("--base", "main")
    assert answer.code == 0, answer.err
    assert answer.outcomes == {name: "passed" if name in QUICK else "skipped" for name in CHECKS}
    assert answer["stages"]["reason"] == "no stage runs anew"
    assert answer.page.startswith("## ✅ headway ci tiny.yaml: 5 checks passed, 5 skipped\n")
    assert answer.report["base_commit"] == git(checkout, "rev-parse", "main")
    assert git(checkout, "status", "--porcelain") == "", "nothing was written in the checkout"


def test_what_continues_a_comparison_names_no_file_that_goes_with_the_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = checks.CiRequest(pipeline="tiny", base="origin/main", trials=2)
    compared = ComparisonRequest(pipeline="tiny", workspace=str(tmp_path), against=str(tmp_path / "base.yaml"), seeds=2)
    assert "--against" in compared.command, "asked for by hand"
    monkeypatch.setenv(CONTINUED_BY, check.command(str(tmp_path)))
    assert compared.command.endswith(f"headway ci tiny --base origin/main --trials 2 --workspace {tmp_path}")


@pytest.mark.parametrize(
    ("options", "problem"), [(("--trials", "2"), "give --base REF"), (("--register",), "it goes with --full")]
)
def test_a_check_that_was_asked_for_and_cannot_be_made_passes_nothing(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    problem: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "ci", "tiny.yaml", "--no-smoke", *options])
    assert run_command() == 2 and problem in capsys.readouterr().err


def test_a_breaking_change_needs_a_major_version(ci, checkout) -> None:
    git(checkout, "switch", "--create", "change")
    commit_with(checkout, "contract.yaml", "{type: string, nullable: true}", NARROWER)
    assert_failed(ci("--base", "main"), "contract", "contract", 4, "call it 2.0.0")
    commit_with(checkout, "contract.yaml", "version: 1.0.0", "version: 1.1.0")
    assert ci("--base", "main").code == 4
    commit_with(checkout, "contract.yaml", "version: 1.1.0", "version: 2.0.0")
    answer = ci("--base", "main")
    assert answer.code == 0 and "breaking" in answer["contract"]["details"][0]


def test_a_breaking_change_that_comes_by_naming_another_contract_is_one(ci, checkout) -> None:
    text = (checkout / "contract.yaml").read_text().replace("{type: string, nullable: true}", NARROWER)
    (checkout / "other.yaml").write_text(text)
    edit(checkout / "tiny.yaml", "contract: contract.yaml", "contract: other.yaml")
    assert_failed(ci("--base", "main"), "contract", "contract", 4, "call it 2.0.0")


@pytest.mark.parametrize("renamed", [False, True])
def test_a_pipeline_whose_file_was_moved_is_held_against_what_it_was(ci, checkout, renamed) -> None:
    # Committed under another name: to the base `tiny.yaml` is a new file.
    git(checkout, "mv", "tiny.yaml", "small.yaml")
    git(checkout, "commit", "--message", "another name")
    git(checkout, "switch", "--create", "change")
    git(checkout, "mv", "small.yaml", "tiny.yaml")
    if renamed:
        edit(checkout / "tiny.yaml", "pipeline: tiny", "pipeline: other")
    git(checkout, "commit", "--all", "--message", "moved")
    answer = ci("--base", "main")
    assert answer.code == 0 and answer.outcomes["contract"] == "passed"
    if not renamed:
        assert answer["stages"]["reason"] == "no stage runs anew"
        assert "at the base its file is small.yaml" in answer["stages"]["details"]
    commit_with(checkout, "contract.yaml", "{type: string, nullable: true}", NARROWER)
    assert_failed(ci("--base", "main"), "contract", "contract", 4, "call it 2.0.0")


def test_a_pipeline_that_the_base_does_not_have_and_its_own_contract_are_new(ci, checkout) -> None:
    git(checkout, "rm", "--quiet", "contract.yaml", "tiny.yaml")
    git(checkout, "commit", "--message", "nothing")
    git(checkout, "revert", "--no-commit", "HEAD")
    answer = ci("--base", "main")
    assert answer.code == 0 and answer.outcomes["contract"] == "skipped"
    assert "every stage runs" in answer["stages"]["reason"]


def test_what_others_merged_since_is_no_change_of_this_checkouts(ci, checkout) -> None:
    git(checkout, "switch", "--create", "change")
    git(checkout, "switch", "main")
    commit_with(checkout, "contract.yaml", "columns:\n", "columns:\n  path: {type: string}\n")
    git(checkout, "switch", "change")
    answer = ci("--base", "main")
    assert answer.code == 0 and answer["contract"]["details"] == []


@pytest.mark.parametrize(
    ("file", "old", "new", "check", "message"),
    [
        ("tiny.yaml", "max_steps", "max_stepz", "config", "Did you mean `max_steps`?"),
        ("tiny.yaml", "training: {", "launch: {nodes: 3}\ntraining: {", "config", "3 ranks cannot share 2 replicas"),
        ("tiny.yaml", "training: {", "training: {parallel: {mode: fast, tensor: 5}, ", "config", "tensor"),
        ("tiny.yaml", "width: 16", "widht: 16", "config", "Did you mean width"),
        ("tiny.yaml", "{model: tiny}", "{model: tiny, tracking_uri: 'sqllite:///x'}", "config", "scheme 'sqllite'"),
        ("tiny.yaml", "recipe: {", "recipe: {name: 'mine:Net', ", "recipe", "no package 'mine'"),
    ],
)
def test_a_mistake_in_the_configuration_ends_with_2_and_is_told_under_its_check(
    ci, checkout, file, old, new, check, message
) -> None:
    edit(checkout / file, old, new)
    answer = ci("--base", "main", smoke=True)
    assert_failed(answer, check, "config", 2, message)
    assert answer.outcomes["smoke"] == "skipped", "nothing is trained"


def test_an_encoder_of_ones_own_that_is_not_there_fails_under_its_name(ci, checkout) -> None:
    (checkout / "my.py").write_text("class Net: pass\n")
    edit(checkout / "tiny.yaml", "{model: {width: 16, depth: 1, heads: 2, hidden: 32}}", "{name: 'my:Net'}")
    edit(checkout / "tiny.yaml", "contract:", "shards: {encoder: {kind: own, name: 'mine:Words'}}\ncontract:")
    answer = ci("--base", "main")
    assert_failed(answer, "encoder", "config", 2, "no package 'mine'")
    assert answer.outcomes["recipe"] == "passed"


def test_a_contract_that_cannot_be_read_fails_where_it_is_read_first(ci, checkout) -> None:
    edit(checkout / "contract.yaml", "version: 1.0.0", "version: one")
    answer = ci("--base", "main")
    assert_failed(answer, "contract", "config", 2, "version")
    assert answer.outcomes["config"] == "failed"


def test_the_first_check_that_failed_decides_the_exit_code(ci, checkout) -> None:
    edit(checkout / "contract.yaml", "{type: string, nullable: true}", NARROWER)
    edit(checkout / "tiny.yaml", "width: 16", "widht: 16")
    answer = ci("--base", "main")
    assert answer.code == 4 and answer.report["verdict"].startswith("contract, ")
    assert answer.junit.find("testsuite").get("failures") == str(answer.page.count("| ❌ failed |")) == "2"


def test_without_a_checkout_the_comparison_fails_with_8_and_the_other_checks_go_on(ci, folder) -> None:
    answer = ci("--base", "main")
    assert_failed(answer, "contract", "environment", 8, "there is no git checkout")
    assert {answer.outcomes[name] for name in ("config", "recipe", "encoder")} == {"passed"}
    assert answer.outcomes["stages"] == "skipped"


def test_without_git_the_comparison_fails_with_8_and_the_other_checks_go_on(
    ci, checkout, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = ci("--base", "main")
    assert_failed(answer, "contract", "environment", 8, "git cannot be started")
    assert answer.outcomes["config"] == "passed"


@pytest.mark.parametrize("ref", ["origin/main", "--upload-pack=x"])
def test_a_ref_that_the_clone_lacks_fails_with_2_and_says_how_to_fetch_it(ci, checkout, ref) -> None:
    assert_failed(ci(f"--base={ref}"), "contract", "config", 2, "fetch-depth: 0")


def test_without_a_base_nothing_is_compared_and_nothing_fails(ci, folder) -> None:
    answer = ci()
    assert answer.code == 0
    assert answer["contract"]["reason"] == "no --base to compare with"


def test_a_new_pipeline_has_nothing_to_be_compared_with(ci, checkout) -> None:
    git(checkout, "rm", "--cached", "tiny.yaml", "contract.yaml")
    git(checkout, "commit", "--message", "before it was there")
    answer = ci("--base", "HEAD")
    assert answer.code == 0 and answer.outcomes["contract"] == "skipped"
    assert "every stage runs" in answer["stages"]["reason"]


def test_a_base_whose_contract_cannot_be_read_does_not_hold_up_the_change_that_mends_it(ci, checkout) -> None:
    commit_with(checkout, "contract.yaml", "version: 1.0.0", "version: one")
    edit(checkout / "contract.yaml", "version: one", "version: 1.0.0")
    answer = ci("--base", "main")
    assert answer.code == 0 and "cannot be read" in answer["contract"]["reason"]


def test_no_pipeline_file_ends_with_2(ci, checkout) -> None:
    (checkout / "tiny.yaml").unlink()
    assert_failed(ci("--base", "main"), "config", "config", 2, "no such pipeline file")


def test_data_that_are_not_there_end_with_3(ci, checkout) -> None:
    shutil.rmtree(checkout / "texts")
    (checkout / "texts").mkdir()
    assert_failed(ci("--base", "main", smoke=True), "smoke", "data", 3, "the source is empty")


@pytest.mark.parametrize(("code", "cause"), [(code, kind.cause) for code, kind in BY_EXIT_CODE.items() if code != 70])
def test_a_retrain_that_fails_ends_with_its_own_exit_code_and_in_its_words(
    ci, checkout, monkeypatch, code: int, cause: str
) -> None:
    def ended(*_arguments: str, **_options: object) -> None:
        raise _error(code, "a warning\nheadway: rank 1: it went wrong.\nTry again.\n", {})

    monkeypatch.setattr("headway.flows.ci.checks.headway", ended)
    answer = ci(smoke=True)
    assert_failed(answer, "smoke", cause, code, "rank 1: it went wrong.\nTry again.")
    assert answer.outcomes["verify"] == "skipped" and answer["verify"]["reason"] == "smoke failed"


def test_data_that_break_the_contract_are_told_without_the_files_that_go_with_the_smoke(ci, checkout) -> None:
    edit(checkout / "contract.yaml", "columns:\n", "rows: {min: 1000000}\ncolumns:\n")
    answer = ci(smoke=True)
    assert_failed(answer, "smoke", "contract", 4, "the data break")
    assert "`headway contract check --report FILE`" in answer["smoke"]["reason"]
    assert "headway-ci-" not in answer["smoke"]["reason"] + answer.err
    assert "to do" not in answer.err, "no card that names what is gone"


def test_a_broken_proof_ends_with_5_and_names_the_link() -> None:
    links = [{"what": "run", "status": "proved", "detail": ""}]
    links.append({"what": "checkpoint", "status": "broken", "detail": "sha256 differs"})
    error = _error(5, "", {"links": links})
    assert (error.exit_code, str(error)) == (5, "broken at checkpoint: sha256 differs")


def test_a_defect_ends_with_70_with_its_traceback_and_the_other_checks_go_on(ci, checkout, monkeypatch) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(checks, "check_pipeline_recipe", broken)
    answer = ci("--base", "main")
    assert_failed(answer, "recipe", "defect", 70, "ZeroDivisionError: oh")
    assert answer.outcomes["encoder"] == "passed" and any("broken" in line for line in answer["recipe"]["details"])


def test_the_step_summary_is_added_to_and_a_report_that_cannot_be_written_is_told(
    ci, checkout, tmp_path, monkeypatch
) -> None:
    (tmp_path / "step.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    answer = ci("--base", "main")
    assert (tmp_path / "step.md").read_text() == f"before\n{answer.page}"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    answer = ci("--base", "main")
    assert answer.code == 8 and "the report cannot be written" in answer.err


def test_no_temporary_folder_is_left(ci, checkout, tmp_path, monkeypatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    ci("--base", "main")
    assert os.listdir(tmp_path / "scratch") == []  # noqa: PTH208
