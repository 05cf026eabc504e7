"""`--wait` stands alone, or with a length, and swallows no other argument."""

from __future__ import annotations

import pytest

from headway.flows.console.wait_option import with_a_length


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["tiny.yaml"], ["tiny.yaml"]),
        (["tiny.yaml", "--wait"], ["tiny.yaml", "--wait=3650d"]),
        (["--wait", "tiny.yaml"], ["--wait=3650d", "tiny.yaml"]),
        (["--wait", "2h", "tiny.yaml"], ["--wait", "2h", "tiny.yaml"]),
        (["--wait=90s", "tiny.yaml"], ["--wait=90s", "tiny.yaml"]),
        (["--wait", "--json", "tiny.yaml"], ["--wait=3650d", "--json", "tiny.yaml"]),
    ],
)
def test_a_length_may_be_left_out(given: list[str], taken: list[str]) -> None:
    assert with_a_length(given) == taken
