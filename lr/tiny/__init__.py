"""The tiny family: a synthetic reasoning language, its oracle, and models trained on it that run on
any machine.

Read `language.py`, `grammar.py`, `oracle.py` in this order for the language, `plans.py` for a
second one, `rows.py` and `training.py` for how the models were trained, `evaluate.py` for what they
can do. `docs/tiny.md` has the numbers.
"""
