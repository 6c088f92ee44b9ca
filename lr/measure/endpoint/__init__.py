"""Models on a server: the engine with an OpenAI-compatible completions endpoint."""
