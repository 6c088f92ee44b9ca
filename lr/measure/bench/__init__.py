"""Benchmarks, whose contenders run alternately on one machine. Start at `report.py`."""
