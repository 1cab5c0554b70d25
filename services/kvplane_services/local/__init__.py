"""Real vLLM engines on this machine: a tiny model, and processes that serve it."""
