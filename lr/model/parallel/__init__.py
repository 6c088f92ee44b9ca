"""Tensor parallelism: one model spread over several processes, each with its slices of the weights
and of the KV cache.

Rank 0 (the *leader*) is the program itself: scheduler, sampling, block tables. The other ranks
(*followers*) do what it orders, in the same sequence, on their slices; inside a layer all of them
meet twice to add up what they have (Shoeybi et al., Megatron-LM, arXiv 1909.08053). The rest of the
house does not notice: `LeaderLM` is a `CausalLM`.

    slices.py    which part of which tensor is whose, and what cannot be divided
    network.py   the layers that add up
    orders.py    what a follower can be told
    leader.py    the model and the cache of rank 0, which tell the others
    follower.py  the life of the others
    team.py      who belongs together, and what happens when one fails
    watch.py     how one notices
    start.py     starting them: processes of our own, or what torchrun has started

This file imports nothing. Start at `slices.py`. What it costs, and what has been run where:
docs/parallel.md.
"""
