"""The player: one page that steps through a trace in a browser. Start at `page.py`."""
