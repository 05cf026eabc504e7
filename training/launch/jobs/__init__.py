"""Jobs of a scheduler, followed from outside: the order a flow leaves, and what the job answers."""
