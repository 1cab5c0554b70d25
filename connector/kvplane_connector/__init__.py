"""The vLLM KV connector plug-in of kvplane."""

__version__ = "0.1.0"
