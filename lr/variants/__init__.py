"""Published variants of step-level speculation, each as one short file on the extension points of
`docs/variants_steps.md`.
"""
