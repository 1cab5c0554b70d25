"""Turns in situations that go wrong, on real engines: every answer must be the recomputed one.

`make truth TURNS=1000 JSON=FILE` runs it; `make test` runs 100 turns. docs/truth.md says what the
figures mean.
"""
