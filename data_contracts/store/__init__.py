"""The ground floor, which ranks stand on too: errors with their causes, documents, digests, atomic publication, refs,
workspaces in folders and on S3.

`documents.py` holds what stages hand on; documents of one room alone are declared there. It imports nothing heavy.
"""
