"""The command line: the HTTP API for a person at a terminal."""
