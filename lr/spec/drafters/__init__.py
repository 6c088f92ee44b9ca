"""Drafters: who guesses the next tokens. One class per way to guess; each is a file."""
