"""The trace as a language: its events, what follows from them, how they stand in a file, and the
state they add up to.

Start at `events.py`, then `docs/trace.md`. Standard library only, so that a trace can be read where
there is no torch.
"""
