"""What short trials on a machine found of settings that move no bit: how values are chosen, what is kept, and when it
may be taken.
"""
