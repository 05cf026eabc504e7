"""Which rows of the source a stage reads: labels, splits, held-out parts, slices, accepted contracts.

It reads data; it writes none.
"""
