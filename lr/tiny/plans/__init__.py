"""The second tiny language: a robot carries out orders in a house of sixteen rooms. There is
nothing to calculate in it.

Read `language.py`, `grammar.py`, `oracle.py` in this order. `docs/tiny.md` has the numbers.
"""
