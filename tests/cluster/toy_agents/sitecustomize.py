"""On the path of a supervisor in a pod: its agents are toys, which import no torch. Any other process is left alone."""

from __future__ import annotations

import sys

if "training.launch.detached" in sys.orig_argv:
    from tests.training.launch.toys.toy_agent import toy_argv
    from training.launch import owned

    owned.agent_argv = toy_argv
