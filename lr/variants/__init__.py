"""Published variants of step-level speculation, each as one short file on the seams of
`docs/variants_steps.md`.
"""
