"""Benchmarks: plain decoding by this project, by others and by a bare loop, timed in turns. Start
at `timing.py`.
"""
