"""Who owns a run among all machines that share a workspace: claims, how they are taken, and a pipeline's history with
the run that a flow continues.
"""
