"""The paper's experiments as commands; each is one file with its arms and how its outcome is
shown.
"""
