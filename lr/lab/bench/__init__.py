"""Benchmarks, each timed in turns with what it is compared with. Start at `report.py`."""
