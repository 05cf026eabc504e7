"""The gang of ranks: process group, store, collectives, what the device can do.

Only this room starts torch.distributed.
"""
