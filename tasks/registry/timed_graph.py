"""How long one call of a registered graph takes: a process of its own, which imports nothing of Headway.

python timed_graph.py GRAPH EXAMPLE DTYPE CALLS    prints one JSON object; of no DTYPE the example is an array's file
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

WARM_UP_CALLS = 5


def main() -> None:
    graph, example, dtype, calls = sys.argv[1:]
    import numpy as np
    import torch

    # With more threads the figure would depend on what else the machine does, and how many cores it has.
    torch.set_num_threads(1)
    called = torch.export.load(graph).module()
    if dtype:
        array = np.asarray(json.loads(Path(example).read_bytes()), dtype=dtype)
    else:
        array = np.load(example, allow_pickle=False)
    given = torch.as_tensor(array)
    took_s = []
    with torch.inference_mode():
        for number in range(WARM_UP_CALLS + int(calls)):
            started_s = time.perf_counter()
            called(given)
            # The first calls allocate memory and choose kernels.
            if number >= WARM_UP_CALLS:
                took_s.append(time.perf_counter() - started_s)
    p50, p95 = np.quantile(took_s, [0.5, 0.95])
    print(json.dumps({"p50_ms": 1e3 * p50, "p95_ms": 1e3 * p95, "shape": list(given.shape)}))


if __name__ == "__main__":
    main()
