"""Verbs of the control plane: one function, one transaction: read, decide, record. What lies outside the database
happens after the commit and is repeatable, because the next tick will find it undone and do it again.
"""
