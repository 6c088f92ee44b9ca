"""Rules that cut reasoning into steps. The default, the blank line, is in `lr/spec/steps.py`;
`choose.py` has the list.
"""
