"""The last look before any rank is started: everything that would fail later is said now, in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import PreflightSpec
from headway.training.launch.base.host_facts import HostFacts
from headway.training.launch.hosts.links import NetworkLink


class ObservedHost(NamedTuple):
    """What one host said, and when it was asked."""

    host: str
    facts: HostFacts
    request_unix_s: float
    response_unix_s: float
    """By the clock of the launching machine."""


def find_faults(
    spec: PreflightSpec,
    *,
    here: HostFacts,
    seen: Sequence[ObservedHost],
    links: Mapping[tuple[str, str], NetworkLink | str],
    environ: Mapping[str, str],
    ranks_per_node: int,
) -> list[str]:
    """Everything that is wrong, a sentence each; empty where all is well.

    Args:
        here: the launching machine.
        links: what was measured between pairs of hosts, or why it could not be.
        environ: what ranks will find in their environment.
    """
    unreachable = [name for name in spec.environment if not environ.get(name)]
    faults = [f"{name} is not set, and ranks need it" for name in unreachable]
    for each in seen:
        faults += [f"{each.host}: {fault}" for fault in _of_host(spec, here, each)]
    faults += _unlike(seen, ranks_per_node)
    for (one, other), link in links.items():
        faults += [f"{one} to {other}: {fault}" for fault in _of_link(spec, link)]
    return faults


def require_no_fault(faults: Sequence[str]) -> None:
    """Raises `EnvironmentProblem`, which names all of them."""
    if faults:
        raise EnvironmentProblem(
            "no rank was started, since preflight found: " + "; ".join(faults) + ".",
            where="launch",
            advice="Mend it, or change what `launch.preflight` asks for. `headway doctor` looks again.",
        )


def _of_host(spec: PreflightSpec, here: HostFacts, seen: ObservedHost) -> list[str]:
    facts, faults = seen.facts, []
    # Weights and digests depend on these versions; two hosts that differ would train two models in one gang.
    for name, wanted in here.versions.items():
        if (found := facts.versions.get(name, "none")) != wanted:
            faults.append(f"{name} is {found} there and {wanted} where the run is launched")
    # Its clock was read at some moment between the question and the answer.
    skew_s = max(seen.request_unix_s - facts.unix_s, facts.unix_s - seen.response_unix_s, 0.0)
    if skew_s > spec.max_clock_skew_s:
        faults.append(f"its clock is {skew_s:.1f} s off, more than {spec.max_clock_skew_s:g}")
    if facts.storage_problem:
        faults.append(f"the run's folder: {facts.storage_problem}")
    if facts.free_bytes < spec.min_free_bytes:
        faults.append(f"{facts.free_bytes / 1e9:.1f} GB are free for checkpoints, not {spec.min_free_bytes / 1e9:.1f}")
    if facts.resolve_s > spec.max_resolve_s:
        faults.append(
            f"its name service takes over {facts.resolve_s:.1f} s for its own name, and each process group asks it"
        )
    if facts.gpu_problem:
        faults.append(facts.gpu_problem)
    return faults


def _unlike(seen: Sequence[ObservedHost], ranks_per_node: int) -> list[str]:
    """A host with a GPU for each rank trains on them, any other on processors; both would wait for ever."""
    # A host whose driver fails is reported for that already; its count of GPUs means nothing.
    working = [each for each in seen if not each.facts.gpu_problem]
    enough = [each.facts.num_gpus >= ranks_per_node for each in working]
    if len(set(enough)) < 2:
        return []
    # Whatever most hosts have is taken for intended.
    usual = enough.count(True) >= enough.count(False)
    rest = working[enough.index(usual)]
    return [
        f"{each.host}: {each.facts.num_gpus} GPUs for its {ranks_per_node} ranks, where {rest.host} has "
        f"{rest.facts.num_gpus}"
        for each, has_enough in zip(working, enough, strict=True)
        if has_enough != usual
    ]


def _of_link(spec: PreflightSpec, link: NetworkLink | str) -> list[str]:
    if isinstance(link, str):
        return [link]
    faults = []
    if link.bytes_per_s < spec.min_bytes_per_s:
        faults.append(f"{link.bytes_per_s / 1e6:.2f} MB/s, under {spec.min_bytes_per_s / 1e6:g}")
    if link.latency_s > spec.max_latency_s:
        faults.append(f"{1e3 * link.latency_s:.1f} ms, over {1e3 * spec.max_latency_s:g}")
    return faults
