"""A flow whose every artifact Prefect refuses: the keys are malformed, and the bar's artifact does not exist."""

from __future__ import annotations

import uuid

from prefect import flow

from headway.tasks.core import artifacts


@flow
def show_everything() -> str:
    artifacts.show_markdown("Not A Key", lambda: "# text", "refused")
    artifacts.show_table("Not A Key", [{"a": 1}], "refused")
    artifacts.show_link("Not A Key", "http://127.0.0.1", "here", "refused")
    table = artifacts.GrowingTable("Not A Key", "refused")
    table.show([{"a": 1}])
    table.close()
    bar = artifacts.ProgressBar("a-bar", "refused")
    bar._id = uuid.uuid4()
    bar.move(50, now_s=10.0)
    assert bar._moving is not None
    bar._moving.join()  # to be refused before the end
    return "survived"


if __name__ == "__main__":
    assert show_everything() == "survived"
