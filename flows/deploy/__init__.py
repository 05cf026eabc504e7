"""`headway deploy`: what a Prefect server should hold, what it holds, and the difference.

Only this room changes deployments, pools, limits and automations.
"""
