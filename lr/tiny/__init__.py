"""The tiny family: synthetic reasoning languages, their oracles, and models that run
anywhere.

For the language read `language.py`, `grammar.py` and `oracle.py` in this order, for a
second language `plans.py`. `evaluate.py` measures the models, which
`scripts/tiny_training` has trained. `docs/tiny.md` has the numbers."""
