"""Lookahead Reasoning in pure PyTorch."""
