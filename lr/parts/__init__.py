"""Parts that the core loads by name when an option asks for them."""
