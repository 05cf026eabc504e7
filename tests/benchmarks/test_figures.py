"""The shape that every benchmark's figures share."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.figures import Figure, show, to_json
from benchmarks.measure import interleaved, measure


def test_the_json_object_has_the_five_keys_of_each_figure() -> None:
    text = to_json([Figure(name="cpu", value=1.5, ratio_to="raw", target="<= 1.7")], libraries=("duckdb",))
    value = json.loads(text)
    assert value["figures"] == [{"name": "cpu", "value": 1.5, "unit": "ratio", "ratio_to": "raw", "target": "<= 1.7"}]
    assert value["machine"]["duckdb"]


@pytest.mark.parametrize(("value", "target", "met"), [(1.7, "<= 1.7", True), (1.8, "<= 1.7", False), (1, "", None)])
def test_a_target_is_met_or_missed(value: float, target: str, met: bool | None) -> None:
    assert Figure(name="cpu", value=value, target=target).is_met is met


def test_with_json_nothing_but_the_object_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show([Figure(name="a [b]" * 40, value=2.0)], title="x", as_json=True)
    assert json.loads(capsys.readouterr().out)["figures"][0]["value"] == 2.0


def test_the_table_says_which_target_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    show([Figure(name="cpu", value=2.0, target="<= 1.7")], title="x", as_json=False)
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.process
def test_a_process_is_measured_by_its_own_use() -> None:
    held = bytearray(300 << 20)  # the measuring process's own memory is not the command's
    small, large = (f"print(len(bytearray({size})))" for size in (1, 200 << 20))
    used = interleaved({"small": (sys.executable, "-c", small), "large": (sys.executable, "-c", large)}, rounds=1)
    assert used["large"][0].peak_rss_bytes - used["small"][0].peak_rss_bytes > 150 << 20
    assert used["small"][0].peak_rss_bytes < len(held) // 2
    assert used["small"][0].output == "1\n"


@pytest.mark.process
def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        measure((sys.executable, "-c", "raise SystemExit(3)"))
