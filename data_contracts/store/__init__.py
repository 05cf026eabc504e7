"""The ground floor, which ranks stand on too: errors with their causes, documents, digests, atomic publication, refs,
workspaces in folders and on S3.

`documents.py` holds what stages hand on; its head says who fills each, and how a field is added. Documents of one room
alone are declared in that room. It imports nothing heavy.
"""
