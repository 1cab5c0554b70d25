"""Engines: what they are, which are alive, and whether they fit together."""
