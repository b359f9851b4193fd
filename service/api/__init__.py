"""The doors: parse, call one operation, render."""
