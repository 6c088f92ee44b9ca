"""The tiny language: synthetic reasoning problems, their oracle, and trained models that
run anywhere.

Read `language.py`, `grammar.py` and `oracle.py` in this order. The scripts in
`training/` have trained and measured the models; `docs/tiny.md` has the numbers."""
