"""A start of a Kubernetes job's first pod, from within: Kubernetes is asked nothing, and makes pods anew by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.protocol import JOB, POD, read_json
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.launch.jobs.job_start import StartState
from headway.training.launch.kubernetes.manifests import EXIT_LEAVING
from headway.training.launch.kubernetes.pods import PodPlace, places_of


class PodStart:
    scheduler = "Kubernetes"
    left_status = EXIT_LEAVING

    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        files = DetachedFiles(run_dir)
        self.job = environ[JOB]
        self._pods, self._pod = files.pods, environ[POD]
        last = read_json(files.start) or {}
        # A pod that replaces the first continues the count, by which ledgers and logs of the starts are told apart.
        self.restarts = int(last["restarts"]) + 1 if last.get("job") == self.job else 0
        # Pods that left before this start are no news.
        self._known_to_leave = {place.pod for place in self._places() if place.state == "leaving"}

    def where(self) -> str:
        return ", ".join(str(place.host) for place in self._places()) or self._pod

    def limit(self, gang: Gang, spec: LaunchSpec) -> None:
        """The job was told when it was made."""

    def state(self) -> StartState:
        # Kubernetes is asked nothing here: pods have no rights. The signal alone says that the pod is to end.
        return StartState.RUNNING

    def is_draining(self) -> bool:
        leaving = {place.pod for place in self._places() if place.state == "leaving" and place.pod != self._pod}
        new = leaving - self._known_to_leave
        self._known_to_leave |= new
        return bool(new)

    def make_room(self) -> None:
        """The job makes another pod in place of one that ends with `left_status`."""

    def _places(self) -> list[PodPlace]:
        return places_of(self._pods, self.job)
