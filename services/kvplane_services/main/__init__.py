"""Composition roots: one module per process, which puts its parts together and runs them."""
