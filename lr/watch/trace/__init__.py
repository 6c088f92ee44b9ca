"""Traces as files: write, read, replay and compare them."""
