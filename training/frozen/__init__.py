"""What a run freezes before it starts and publishes when it ends: its code, its checks, its result.

Later edits cannot reach it.
"""
