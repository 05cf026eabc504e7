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
        # No length, and no pipeline either, of which there is one: so that what is said names the option.
        (["tiny.yaml", "--wait", "5x"], ["tiny.yaml", "--wait", "5x"]),
        (["tiny.yaml", "--wait", "1.5h", "--json"], ["tiny.yaml", "--wait", "1.5h", "--json"]),
        (["--wait", "90", "tiny.yaml"], ["--wait", "90", "tiny.yaml"]),
        # A pipeline may be called so.
        (["--wait", "2024-sales"], ["--wait=3650d", "2024-sales"]),
        (["--wait", "--json", "5x"], ["--wait=3650d", "--json", "5x"]),
        (["--wait", "2024.yaml", "--note", "late"], ["--wait=3650d", "2024.yaml", "--note", "late"]),
    ],
)
def test_a_length_may_be_left_out(given: list[str], taken: list[str]) -> None:
    assert with_a_length(given) == taken
