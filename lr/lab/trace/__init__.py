"""Traces as files: written, read, replayed and compared."""
