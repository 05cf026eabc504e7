"""From a command to ranks on nodes, and back to one outcome.

Nothing that is started here outlives its run.
"""
