"""Sessions: which conversation holds which lease, and what its client hinted."""
