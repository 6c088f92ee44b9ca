"""For authors of variants: what a part must keep to, asked of the part itself."""
