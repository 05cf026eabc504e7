"""One node's part: the guard, the agent, the ranks it starts, and what ends them.

It outlives neither its launcher nor its ranks.
"""
