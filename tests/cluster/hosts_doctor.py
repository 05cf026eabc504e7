"""`headway doctor PIPELINE --json` without a look at this machine's own torch, which costs two imports of it.

python -m tests.cluster.hosts_doctor WORDS...
"""

from __future__ import annotations

import sys

from headway.flows.cli.command_line import run
from headway.flows.show import doctor

if __name__ == "__main__":
    doctor.MEETING = "print('nobody met')"
    sys.argv[:] = ["headway", "doctor", *sys.argv[1:]]
    sys.exit(run())
