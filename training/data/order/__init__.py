"""Which sample comes when: a function of manifest, seed, epoch and position.

Nothing here reads a byte of data.
"""
