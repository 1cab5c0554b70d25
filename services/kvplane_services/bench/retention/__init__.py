"""Which finished conversations engines should keep: policies under a trace of requests."""
