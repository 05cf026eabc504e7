"""A rehearsal through a real Slurm: the gang is a job on its nodes, twice, and the rest runs beside the flow."""

from __future__ import annotations

from pathlib import Path

from headway.flows.config.request import RetrainRequest
from headway.training.observe.ledger import Event
from tests.cluster.slurm import SlurmCluster
from tests.e2e.project import CONTRACT, PIPELINE, write_texts
from tests.training.forked_gangs import forked_gangs


def test_a_rehearsal_queues_the_gang_at_full_size_and_leaves_neither_job_nor_file(
    slurm: SlurmCluster, prefect_here: None, tmp_path: Path
) -> None:
    from headway.flows.rehearse.rehearsing import RehearsalRunner
    from headway.flows.rehearse.report import RehearsalReport

    project = tmp_path / "project"
    write_texts(project / "texts")
    queued = PIPELINE.replace("launch: {nodes: 1, ranks_per_node: 2}", "launch: {launcher: slurm, nodes: 2}")
    (project / "tiny.yaml").write_text(queued)
    (project / "contract.yaml").write_text(CONTRACT)
    events: list[Event] = []
    told: list[RehearsalReport] = []
    request = RetrainRequest(pipeline=str(project / "tiny.yaml"), workspace=str(project / "workspace"))
    with forked_gangs():  # of what runs beside the flow
        RehearsalRunner(request, steps=4, on_event=events.append).run(told.append)
    assert [event["event"] for event in events].count("job.submitted") == 2, "before the restore and after it"
    (report,) = told
    assert (report.launcher, report.nodes, report.exit_code) == ("slurm", 2, 0)
    assert sorted(report.peak_memory_bytes) == [0, 1] and report.checkpoint is not None
    assert report.checkpoint.restore_s is not None
    assert slurm.command("squeue", "--noheader") == ""
    assert list((project / "workspace").iterdir()) == []
