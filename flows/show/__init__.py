"""What a person looks at: status, plan, logs, history, doctor, windows.

Nothing here changes a workspace or a server.
"""
