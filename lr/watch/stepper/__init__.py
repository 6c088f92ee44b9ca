"""Stepping through an answer: forward, back, into details, and aside into what-ifs.

Start at `session.py`; `docs/step.md` shows a session. The prompt is in
`commands/trace.py`."""
