"""Variants of the method, each a short file that replaces some of the seven parts in
`docs/variants.md`."""
