"""The paged KV cache: block ids (`pool`), one branch (`table`), growing a batch (`append`), tensors
(`cache`).

Only `cache` imports torch; this file imports nothing, so that the bookkeeping can be used without
it. Start at `pool.py`.
"""
