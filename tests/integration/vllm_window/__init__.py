"""Tests on real engines with little memory, a package apart: one pair lives at a time."""
