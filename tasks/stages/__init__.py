"""The seven stages, a file each, and what only they share.

A stage publishes a document; it returns its link.
"""
