"""The HTTP API: parse a request, call one operation, render its result."""
