"""Shards: groups, splits, and the Parquet they are written to.

A shard is a function of bytes, spec and fitted state alone. `sharding.py` fills the manifest, whose fields are declared
in `data_contracts/store/documents.py`.
"""
