"""Where files lie, what belongs to a source, and its snapshot.

The data themselves are not evaluated here.
"""
