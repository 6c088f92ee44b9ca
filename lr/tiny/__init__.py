"""The tiny family: a synthetic reasoning language, its oracle, and models trained on it that run on
any machine.

Read `language.py`, `grammar.py`, `oracle.py` in this order for the language, `plans.py` for a
second one, `evaluate.py` for what the models can do; `scripts/tiny_training` has trained them.
`docs/tiny.md` has the numbers."""
