"""Real clusters and servers for tests: each is started in a folder of its own, and stopped."""
