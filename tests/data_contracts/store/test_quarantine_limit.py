"""The ratio that is advised lets just so many rows go, by the very arithmetic of the gate."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.quarantine_limit import sufficient_ratio


@pytest.mark.parametrize("num_rows", [1, 7, 100, 400, 3_000, 43_152, 1_000_003])
def test_the_ratio_that_is_advised_suffices_and_is_hardly_more(num_rows: int) -> None:
    for num_bad in {1, 2, 29, 57, num_rows // 3, num_rows // 2 + 1, num_rows} - {0}:
        if num_bad <= num_rows:
            ratio = sufficient_ratio(num_bad, num_rows)
            assert int(num_rows * ratio) >= num_bad and 0 < ratio <= 1
            assert ratio <= 1.11 * num_bad / num_rows + 1e-9


def test_of_no_bad_rows_none_may_go() -> None:
    assert sufficient_ratio(0, 10) == 0
