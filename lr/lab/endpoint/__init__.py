"""Models that somebody else serves: the engine behind an OpenAI-compatible completions endpoint."""
