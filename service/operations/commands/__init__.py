"""Enqueue commands: store them, split them by graph, and wait until a barrier has carried them."""
