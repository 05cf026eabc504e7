"""Moments and lengths of time as people write them, and what is none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.console.stop_options import duration


def test_a_length_is_the_sum_of_its_parts() -> None:
    assert duration("1d2h3m4s", "--since") == timedelta(days=1, hours=2, minutes=3, seconds=4)


@pytest.mark.parametrize("text", ["", "0s", "soon", "1e3d", "-1d", "99999999999d", f"{'9' * 5000}d", "3651d"])
def test_what_is_no_length_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length of time"):
        duration(text, "--since")
