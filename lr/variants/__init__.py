"""Variants of the method, each a short file that replaces some of the six parts in
`docs/variants.md`."""
