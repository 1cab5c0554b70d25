"""The command line. Thin: each module turns options into one call and prints the answer."""
