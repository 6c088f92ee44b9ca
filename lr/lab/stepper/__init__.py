"""Stepping through an answer: forward, back, inside, and aside into what would have been.

Start at `session.py`; `docs/step.md` shows it at work. The prompt itself is in `commands/trace.py`.
"""
