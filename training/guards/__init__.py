"""What watches the numbers while a run trains: spikes, numbers that are not finite, memory, stops, roll-backs.

A guard decides from what all ranks have.
"""
