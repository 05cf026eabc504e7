"""Checkpoints: pieces of tensors, written and committed by all ranks, verified before every use, restored on any mesh.

The manifest is published last. Which are kept is declared in `training/config/checkpoints.py`, with when one is due
and how many lie there at most; `retention.py` decides which go.
"""
