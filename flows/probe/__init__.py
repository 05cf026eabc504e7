"""A probe: a small retrain through every stage, on data made for it, in a workspace of its own.

It shows that a workspace, its worker and its launcher can still make a model, before a pipeline needs them.
"""
