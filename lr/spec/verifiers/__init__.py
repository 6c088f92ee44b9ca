"""Verifiers: does the draft step mean the same as the target's step?"""
