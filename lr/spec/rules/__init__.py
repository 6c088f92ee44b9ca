"""Acceptance rules, one class each: rejection, block verification, sample matching; and the exact
law of any rule.
"""
