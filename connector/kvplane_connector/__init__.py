"""The vLLM KV connector plug-in of kvplane."""
