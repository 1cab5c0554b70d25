"""`kvplane demo`: a five-turn streaming chat on two engines, with and without reuse, measured."""
