"""The OpenAI-compatible HTTP gateway: names sessions, asks the router, runs the legs of a turn."""
