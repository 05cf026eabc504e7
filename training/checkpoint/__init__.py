"""Checkpoints: pieces of tensors, written and committed by all ranks, verified before every use, restored on any mesh.

The manifest is published last. Which checkpoints are kept is declared in `training/config/checkpoints.py`.
"""
