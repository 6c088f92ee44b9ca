"""Variants of the method, each a short file on the extension points of
`docs/variants_steps.md`."""
