"""Whether a version is what its documents say: every digest again, and training again.

It changes nothing.
"""
