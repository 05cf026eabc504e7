"""How a model lies on ranks, and how gradients are added: replicas, exact shards, meshes, pipelines.

The bits of exact arrangements depend on no number of ranks.
"""
