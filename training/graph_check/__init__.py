"""Exported graphs, parsed and held against a list of operators before torch sees them.

Standard library alone: it is copied into registered models.
"""
