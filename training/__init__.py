"""What happens on ranks, and what starts them: plain Python and torch, with no orchestrator, tracker or Great
Expectations. Everything that a rank needs comes by file and argument.
"""
