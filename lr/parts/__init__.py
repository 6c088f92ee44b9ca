"""Parts that the core finds by their names when an option asks for them: the judge and other
verifiers, segmenters, drafters, an acceptance rule, a variant's steering.
"""
