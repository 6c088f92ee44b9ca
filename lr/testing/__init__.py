"""For those who write variants: `check` holds a part against the contract of its seam."""
