"""What islands that train apart save on slow links: bytes that leave a host, time and collectives, by way.

`python -m benchmarks.local_updates [--rate 100mbit ...] [--rounds N] [--json]`

Two hosts of one rank train a language model of 1.3 M parameters. Hosts are network namespaces with a token bucket each;
that needs root. Ways take turns of ten steps, so that a noisy neighbour meets them all. Of a round no other
collectives are made than of a step in which ranks meet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks.figures import Figure, show
from benchmarks.local_updates_gang import APART, APART_INT8, EVERY_STEP, EVERY_STEP_INT8, EVERY_STEPS, LATE, Taken
from benchmarks.rank_processes import first_answer
from benchmarks.slow_hosts import LINK, Host, slow_hosts, why_no_slow_hosts
from headway.training.launch.base.ports import free_port

NUM_HOSTS = 2
BYTES = {APART: 1.05 / EVERY_STEPS, APART_INT8: 0.26 * 1.05 / EVERY_STEPS, LATE: 1.05 / EVERY_STEPS}
"""Of what leaves a host where gradients meet at every step in fp32, at the most."""
MEETS_AS = {APART: EVERY_STEP, APART_INT8: EVERY_STEP_INT8, LATE: EVERY_STEP}
"""Which step makes the collectives that a round may."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", nargs="*", default=["100mbit", "20mbit"], help="what each host may send")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_no_slow_hosts():
        sys.exit(f"no hosts with slow links: {reason}")
    found: list[Figure] = []
    for rate in arguments.rate:
        with slow_hosts(NUM_HOSTS, rate) as hosts:
            found += figures(rate, run(hosts, arguments.rounds))
    show(found, title="Islands that train apart", as_json=arguments.json, libraries=("torch",))


def run(hosts: Sequence[Host], rounds: int) -> dict[str, list[Taken]]:
    """Raises `RuntimeError`: a rank failed."""
    port = free_port()
    environments = [
        {
            "RANK": f"{rank}",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": f"{len(hosts)}",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": f"{port}",
            "GLOO_SOCKET_IFNAME": LINK,
        }
        for rank in range(len(hosts))
    ]
    command = (sys.executable, "-m", "benchmarks.local_updates_gang", f"{rounds}")
    answer = first_answer([(*host.prefix, *command) for host in hosts], environments)
    return {way: [Taken.model_validate(each) for each in turns] for way, turns in json.loads(answer).items()}


def figures(rate: str, taken: Mapping[str, Sequence[Taken]]) -> list[Figure]:
    """Medians, and medians of the ratios taken turn by turn."""

    def ratio(way: str, what: Callable[[Taken], float], to: Callable[[Taken], float] | None = None) -> float:
        pairs = zip(taken[way], taken[EVERY_STEP], strict=True)
        return statistics.median(what(own) / (to or what)(its) for own, its in pairs)

    step_s = statistics.median(each.wall_s for each in taken[EVERY_STEP]) / EVERY_STEPS
    cpu_s = statistics.median(each.cpu_s for each in taken[EVERY_STEP]) / EVERY_STEPS
    sent = statistics.median(each.left_host_bytes for each in taken[EVERY_STEP]) / EVERY_STEPS
    made = [
        Figure(name=f"{EVERY_STEP}, {rate}: a step", value=step_s, unit="s"),
        Figure(name=f"{EVERY_STEP}, {rate}: processor time of a step", value=cpu_s, unit="s"),
        Figure(name=f"{EVERY_STEP}, {rate}: bytes that leave a host", value=sent / 1e6, unit="MB"),
        Figure(
            name=f"a step without a link, {rate}",
            value=ratio(APART, lambda own: own.apart_s or 0.0, lambda its: its.wall_s / EVERY_STEPS),
            ratio_to=EVERY_STEP,
        ),
    ]
    for way, turns in taken.items():
        if way == EVERY_STEP:
            continue
        bound = f"<= {BYTES[way]:.5g}" if way in BYTES else ""
        sent_ratio = ratio(way, lambda each: each.left_host_bytes)
        made += [
            Figure(name=f"{way}, {rate}: time", value=ratio(way, lambda each: each.wall_s), ratio_to=EVERY_STEP),
            Figure(
                name=f"{way}, {rate}: processor time", value=ratio(way, lambda each: each.cpu_s), ratio_to=EVERY_STEP
            ),
            Figure(name=f"{way}, {rate}: bytes that leave a host", value=sent_ratio, ratio_to=EVERY_STEP, target=bound),
        ]
        if way not in MEETS_AS:
            continue
        together = taken[MEETS_AS[way]][0].calls
        for kind in sorted(together.keys() | turns[0].calls.keys()):
            of_step = together.get(kind, 0) / EVERY_STEPS
            made.append(
                Figure(
                    name=f"{way}, {rate}: {kind} of a round",
                    value=max(each.calls.get(kind, 0) for each in turns) / of_step if of_step else float("inf"),
                    ratio_to=f"a step of {MEETS_AS[way]}",
                    target="<= 1",
                )
            )
    return made


if __name__ == "__main__":
    main()
