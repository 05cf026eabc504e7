"""Exported graphs, parsed and held against a list of operators before torch sees them.

It is copied into registered models: the check needs the standard library alone, and `run_graph.py`, which runs what has
passed, needs torch.
"""
