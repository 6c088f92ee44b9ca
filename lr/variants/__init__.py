"""Variants of the method, each a short file that replaces some of the eight parts in
`docs/variants.md`."""
