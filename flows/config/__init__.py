"""The pipeline file, its windows and triggers, profiles and requests: declared, checked and refused before anything is
spent.

It knows of no server and of no run.
"""
