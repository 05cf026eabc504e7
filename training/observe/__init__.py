"""What a run says while it goes on: the ledger, telemetry, traffic, heartbeats.

To write an event never fails a step.
"""
