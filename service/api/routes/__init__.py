"""The routes, with one file for each resource: parse, call one operation, render."""
