"""The command line: one module a group of commands.

A command reads its options, asks a module below for the work, and shows what comes back. It decides nothing itself.
"""
