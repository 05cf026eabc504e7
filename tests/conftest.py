"""What every test process needs first."""

from __future__ import annotations

import signal

# A shell that runs us in the background lets us ignore Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
