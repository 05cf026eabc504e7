"""No row that has validated a run of a pipeline evaluates its models, whatever shares and lists say later."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.rows.validation_split import ValidationSplit, require_apart
from headway.tasks.stages.launch import continue_run
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.days import TABLE, Days, columns, shards_spec

pytestmark = pytest.mark.process


def test_a_share_that_takes_in_rows_that_validated_is_refused_also_when_none_validate_any_more(days: Days) -> None:
    def spec(heldout: float, validates: float) -> ShardSpec:
        return shards_spec(TABLE, heldout_fraction=heldout, validation_fraction=validates)

    require_apart(days.context, spec(0.1, 0.4), ())
    require_apart(days.context, spec(0.6, 0.1), ())
    for validates in (0.0, 0.1):
        with pytest.raises(ConfigError, match=r"heldout_fraction.*0\.7 takes in rows that have validated"):
            require_apart(days.context, spec(0.7, validates), ())
    require_apart(days.context, spec(0.7, 0.0).model_copy(update={"split_salt": "anew"}), ())


def test_a_run_is_not_resumed_whose_older_shards_hold_out_what_has_validated_since(days: Days) -> None:
    days.write(**columns())
    run = days.workspace.publish_document(days.run(shards_spec(TABLE, heldout_fraction=0.6)))
    require_apart(days.context, shards_spec(TABLE, heldout_fraction=0.1, validation_fraction=0.5), ())
    with pytest.raises(ConfigError, match=r"heldout_fraction.*0\.6 takes in rows that have validated"):
        continue_run.fn(days.context, TrainingSpec(), LaunchSpec(), run, "")
    assert not (days.workspace.local_root / "runs" / run.sha256[:16]).exists(), "nothing was begun"


def test_of_two_that_look_at_once_and_write_one_after_the_other_one_is_refused(days: Days, monkeypatch) -> None:
    first = shards_spec(TABLE, heldout_fraction=0.1, validation_fraction=0.4)
    second = shards_spec(TABLE, heldout_fraction=0.7, validation_fraction=0.1)
    publish = days.workspace.publish_document

    def after_the_first(document: ValidationSplit) -> Link:
        monkeypatch.undo()
        require_apart(days.context, first, ())
        return publish(document)

    monkeypatch.setattr(days.context.workspace, "publish_document", after_the_first)
    with pytest.raises(ConfigError, match="have validated"):
        require_apart(days.context, second, ())


def test_a_glob_that_takes_in_a_file_that_validated_is_refused_however_it_is_written(days: Days) -> None:
    def spec(**lists: list[str]) -> ShardSpec:
        return shards_spec(TABLE, split_by="given", split={"train": ["2024/**"], **lists})

    paths = ["2024/a.csv", "2025/06/b.csv", "2026/c.csv"]
    require_apart(days.context, spec(validation=["2025/**"], heldout=["2026/**"]), paths)
    for heldout in (["202[56]/**"], ["2025/06/*"], ["2025/**"]):
        with pytest.raises(ConfigError, match=r"'2025/06/b\.csv' names has validated"):
            require_apart(days.context, spec(heldout=heldout), paths)
    require_apart(days.context, spec(heldout=["2026/**"]), paths)


def test_a_value_that_named_what_validates_names_nothing_that_evaluates(days: Days) -> None:
    def spec(**lists: list[str]) -> ShardSpec:
        given = {"column": "part", "train": ["train"], **lists}
        return shards_spec(TABLE, split_by="given", split=given)

    require_apart(days.context, spec(validation=["dev"], heldout=["test"]), ())
    require_apart(days.context, spec(validation=["dev", "dev2"], heldout=["test"]), ())
    with pytest.raises(ConfigError, match=r"what 'dev' names has validated"):
        require_apart(days.context, spec(heldout=["test", "dev"]), ())
