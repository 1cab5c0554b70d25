"""Implementations of the ports: stores, and what is reached over the network."""
