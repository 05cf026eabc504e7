"""What a checkpoint says of bits that an undisturbed run would not have come to, and the same in words.

No torch: flows read it.
"""

from __future__ import annotations

from collections.abc import Mapping

INEXACT_RESUMES = "inexact_resumes"
"""How often the run went on where bits may differ: on another kind of machine, or another mesh."""
HALVED_MICRO_BATCH = "halved_micro_batch"
"""The micro-batch that was left when memory had run out, in samples; there is no such scalar if it never did."""


def inexactness(scalars: Mapping[str, float | int | str]) -> str:
    """Why the weights are not to the bit those of an undisturbed run; empty if they are."""
    resumes, halved = int(scalars.get(INEXACT_RESUMES, 0)), int(scalars.get(HALVED_MICRO_BATCH, 0))
    reasons = []
    if resumes:
        times = "once" if resumes == 1 else f"{resumes} times"
        reasons.append(f"resumed {times} on another kind of machine or mesh")
    if halved:
        reasons.append(f"micro-batch halved to {halved} when memory ran out")
    return "; ".join(reasons)
