"""What a person does to champions, models, contracts and the workspace, beside a retrain.

Each module is one act, on record with who did it and why.
"""
