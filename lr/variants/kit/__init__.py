"""`lr check`: what a part must keep to, asked of the part itself. Read `check.py`."""
