"""Shards on a rank: the node's cache, the reader, prefetching, the way to the device.

Every file is verified before its rows are used.
"""
