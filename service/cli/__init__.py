"""The same doors for a person at a terminal."""
