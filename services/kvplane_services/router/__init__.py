"""The router: which engines serve a turn, and where the KV of its history comes from."""
