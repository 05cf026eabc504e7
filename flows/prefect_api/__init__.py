"""Prefect servers, ours and others': how they are started, found, trusted and asked.

Passwords go to listeners of one's own alone.
"""
