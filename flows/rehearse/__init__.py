"""`headway rehearse`: every stage for real on a part of the data, in a place of its own.

It leaves nothing behind in the pipeline's workspace.
"""
