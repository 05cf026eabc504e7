"""How rows of the source become rows of shards: what is fitted on the training split, and what encodes.

A user's own encoder runs in a process of its own.
"""
