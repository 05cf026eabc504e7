"""`headway ci`: what a change to a project would do, for its pull request.

It reads the base branch and runs nothing for real but a smoke run.
"""
