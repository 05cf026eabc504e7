"""What it costs to sum one gradient over hosts: bytes that leave a host, and time, by way, on slow links.

`python -m benchmarks.communication [--rate 100mbit ...] [--hosts 2x1 2x2 2x4] [--million N] [--rounds N] [--json]`

Hosts are network namespaces with a token bucket each; that needs root. Ways take turns, so that a noisy neighbour meets
them all. `fp32` is the tree of mode `exact` on the levels that the hosts have, `one level` without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks.communication_gang import BUCKET_ELEMENTS, Request, Taken
from benchmarks.figures import Figure, show
from benchmarks.rank_processes import first_answer
from benchmarks.slow_hosts import LINK, Host, slow_hosts, why_no_slow_hosts
from headway.training.launch.base import protocol
from headway.training.launch.base.ports import free_port

LEFT_HOST = {"2x2": "<= 0.55", "2x4": "<= 0.28"}
"""Of the bytes that leave it on one level."""
LEAST = "<= 1.02"
"""Of the bytes that a host has to send at the least: its part of the sum to each other host, and the sum of its own."""
INT8_TIME, INT8_BYTES = "<= 0.4", "<= 0.26"
"""Of fp32's."""
ISLANDS = {"2x1": 4, "2x2": 4, "2x4": 8, "1x2": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", nargs="*", default=["100mbit"], help="what each host may send, as `tc` says it")
    parser.add_argument("--hosts", nargs="*", choices=sorted(ISLANDS), default=["2x1", "2x2"], help="hosts x ranks")
    parser.add_argument("--million", type=float, default=5.0, help="elements of the gradient")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_no_slow_hosts():
        sys.exit(f"no hosts with slow links: {reason}")
    num_buckets = max(1, round(arguments.million * 1e6 / BUCKET_ELEMENTS))
    found: list[Figure] = []
    for layout in arguments.hosts:
        num_hosts, per_host = map(int, layout.split("x"))
        request = Request(
            elements=num_buckets * BUCKET_ELEMENTS, rounds=arguments.rounds, islands=max(ISLANDS[layout], num_hosts)
        )
        for rate in arguments.rate:
            with slow_hosts(num_hosts, rate) as hosts:
                found += figures(layout, rate, request.elements, run(request, hosts, per_host))
    title = f"One gradient of {4e-6 * num_buckets * BUCKET_ELEMENTS:.0f} MB in fp32"
    show(found, title=title, as_json=arguments.json, libraries=("torch",))


def run(request: Request, hosts: Sequence[Host], per_host: int) -> dict[str, list[Taken]]:
    """Raises `RuntimeError`: a rank failed."""
    port = free_port()
    places = [(host, local) for host in range(len(hosts)) for local in range(per_host)]
    environments = [
        {
            "RANK": host * per_host + local,
            "LOCAL_RANK": local,
            "WORLD_SIZE": len(places),
            "LOCAL_WORLD_SIZE": per_host,
            protocol.RANKS_HERE: per_host,
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": LINK,
        }
        for host, local in places
    ]
    command = (sys.executable, "-m", "benchmarks.communication_gang", request.model_dump_json())
    answer = first_answer(
        [(*hosts[host].prefix, *command) for host, _ in places],
        [{name: str(value) for name, value in each.items()} for each in environments],
    )
    return {way: [Taken.model_validate(each) for each in rounds] for way, rounds in json.loads(answer).items()}


def figures(layout: str, rate: str, elements: int, taken: Mapping[str, Sequence[Taken]]) -> list[Figure]:
    """Medians, and medians of the ratios taken round by round."""
    case = f"{layout}, {rate}"
    one_level, levels = "fp32, one level", "fp32" if "fp32" in taken else "fp32, one level"

    def ratio(way: str, to: str, what: str) -> float:
        pairs = zip(taken[way], taken[to], strict=True)
        return statistics.median(float(getattr(own, what)) / float(getattr(its, what)) for own, its in pairs)

    made = []
    for way, rounds in taken.items():
        made.append(Figure(name=f"{way}, {case}", value=statistics.median(each.wall_s for each in rounds), unit="s"))
        if way == levels:
            continue
        is_int8 = way == "int8"
        made.append(
            Figure(
                name=f"{way}, {case}: time",
                value=ratio(way, levels, "wall_s"),
                ratio_to=levels,
                target=INT8_TIME if is_int8 and rate == "100mbit" else "",
            )
        )
        made.append(
            Figure(
                name=f"{way}, {case}: bytes that leave a host",
                value=ratio(way, levels, "left_host_bytes"),
                ratio_to=levels,
                target=INT8_BYTES if is_int8 else "",
            )
        )
    if levels != one_level:
        made.append(
            Figure(
                name=f"levels, {case}: bytes that leave a host",
                value=ratio(levels, one_level, "left_host_bytes"),
                ratio_to=one_level,
                target=LEFT_HOST.get(layout, ""),
            )
        )
    num_hosts = int(layout.split("x")[0])
    least_bytes = 4 * elements * 2 * (num_hosts - 1) / num_hosts
    left_bytes = statistics.median(each.left_host_bytes for each in taken[levels])
    made.append(
        Figure(
            name=f"{levels}, {case}: bytes that leave a host",
            value=left_bytes / least_bytes,
            ratio_to="the least that hosts can send",
            target=LEAST,
        )
    )
    return made


if __name__ == "__main__":
    main()
