"""The scheduler on a script instead of models."""
