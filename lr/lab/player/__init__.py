"""The step-through player: one page that shows a trace, and needs nothing but a browser. Start at
`page.py`."""
