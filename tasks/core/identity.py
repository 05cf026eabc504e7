"""Who did something, and who vouches for it: the operating system for the account, Prefect for a flow run of a
deployment, and nobody for names that only the environment gives.

    alice@host (OS)
    root@host (OS), says alice (environment)
    flow run brisk-heron of a deployment (Prefect), as worker@host (OS)
"""

from __future__ import annotations

import os
import pwd
import socket

from headway.tasks.core.flow_run import current_flow_run

CLAIMED_BY = ("SUDO_USER", "GITHUB_ACTOR", "GITLAB_USER_LOGIN", "LOGNAME", "USER")
"""Variables that name a person, the most telling first. Whoever starts the command sets them as they like."""


def current_user() -> str:
    """The account as the kernel knows it, with the host, and each further name with who vouches for it."""
    account = _account()
    text = f"{account}@{socket.gethostname()} (OS)"
    if run := _deployed_flow_run():
        return f"flow run {run} of a deployment (Prefect), as {text}"
    claimed = next((name for name in map(os.environ.get, CLAIMED_BY) if name and name != account), "")
    return f"{text}, says {claimed} (environment)" if claimed else text


def _account() -> str:
    uid = os.getuid()
    try:
        # Containers may run under a number that no account of theirs has.
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _deployed_flow_run() -> str:
    """Name of the flow run, if this is one that a Prefect server had started; by hand there is none to vouch."""
    run = current_flow_run()
    return run.name if run is not None and run.deployment_id is not None else ""
