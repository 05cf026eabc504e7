"""The ground floor, which ranks stand on too: errors and failure causes, every document's fields, digests, atomic
publication, refs, workspaces in folders and on S3. It imports nothing heavy.
"""
