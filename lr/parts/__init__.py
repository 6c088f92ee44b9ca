"""Other parts for the method than those of the core: verifiers, segmenters, drafters, an acceptance
rule. The core finds each by its name when an option asks for it.
"""
