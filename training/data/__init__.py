"""From rows of a source to batches on a rank: encode, shard, load, order.

Each room below is one of these steps.
"""
