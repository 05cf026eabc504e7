"""The supervisor: attempts, deadlines and one retry budget, on whatever launcher.

It is where a launcher is chosen.
"""
