"""One file for each resource: parse, call one operation, render."""
