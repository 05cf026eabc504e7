"""Kubernetes: manifests, pods and jobs, and the authenticated stream to them.

It is the only room that knows the client. Its options are declared in `training/config/launcher_specs.py`.
"""
