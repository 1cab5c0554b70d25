"""A simulated engine: vLLM's HTTP surface, NIXL transfers and kvplane's connector, no model."""
