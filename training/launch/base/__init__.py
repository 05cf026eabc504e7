"""What all launchers share: gang and attempt, the files by which processes speak, ownership of processes, leases,
ports, retry budget. Standard library and pydantic alone.
"""
