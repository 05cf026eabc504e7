"""A smoke retrain: the real flow, a few steps on a part of the data, in a workspace that goes with it.

Nothing of it reaches a registry, a workspace or a Prefect server of the team's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.errors import ContractViolation
from headway.flows.ci.child import JsonDocument, headway
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.rehearse.project import TEAMS_OWN, SmallProject, make_small_project


@dataclass(frozen=True, kw_only=True, slots=True)
class Smoke:
    """A small project and its workspace, in a folder that somebody removes."""

    project: SmallProject
    workspace: Path

    def retrain(self, on_event: Callable[[JsonDocument], object]) -> JsonDocument:
        """Returns the summary. Raises `HeadwayError`: the retrain's own."""

        def without_card(event: JsonDocument) -> None:
            # It names files and commands of this workspace, which goes; its cause is the check's own reason.
            if event.get("event") != "flow.card":
                on_event(event)

        try:
            return self._headway("retrain", str(self.project.file), on_event=without_card)
        except ContractViolation as error:
            what, report, _ = str(error).partition(f" Read {self.workspace}")
            if not report:
                raise
            raise ContractViolation(what, advice="`headway contract check --report FILE` writes a report.") from error

    def verify(self, model_uri: str) -> JsonDocument:
        """Returns what was proved. Raises `IntegrityError`: a link of the proof is broken."""
        return self._headway("verify", model_uri)

    def _headway(self, *arguments: str, on_event: Callable[[JsonDocument], object] | None = None) -> JsonDocument:
        environment = {name: value for name, value in os.environ.items() if name not in TEAMS_OWN}
        workspace = ("--workspace", str(self.workspace), "--json")
        return headway(*arguments, *workspace, environment=environment, on_event=on_event)


def make_smoke(pipeline: PipelineSpec, file: Path, scratch: Path) -> Smoke:
    """As `make_small_project`."""
    return Smoke(project=make_small_project(pipeline, file, scratch), workspace=scratch / "workspace")
