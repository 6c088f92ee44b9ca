"""The laboratory: everything that watches, measures or serves the core. The core imports nothing of
it."""
