"""Processes that parse and bind statements. They can be killed, so no statement's text can block the event loop."""
