"""How the tiny models were trained: rows, the loop, and the judge's pairs.
`train_tiny.py` and `train_judge.py` use it; the package, which has the finished models,
does not.
"""
