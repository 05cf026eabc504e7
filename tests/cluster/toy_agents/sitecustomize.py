"""On the path of a supervisor in a pod: its agents are toys, which import no torch. Any other process is left alone."""

from __future__ import annotations

import sys

if "headway.training.launch.supervise.detached" in sys.orig_argv:
    from headway.training.launch.hosts import owned
    from tests.training.launch.toys.toy_agent import toy_argv

    owned.agent_argv = toy_argv
