"""Hosts by ssh: who answers, what the way between them bears, and processes owned there."""
