"""Prefect's command line, which starts in three quarters of its time: `python -m flows.prefect_cli ARGUMENTS...`."""

from __future__ import annotations

import gc

gc.set_threshold(50_000, 20, 20)  # as in `headway`: most of what is imported stays

from prefect.cli import app  # noqa: E402

if __name__ == "__main__":
    app()
