"""Implement the verbs of the control plane. Each reads, decides and records in one transaction.

Effects outside the database happen after the commit. They are repeatable, because the next tick finds a missing effect
and repeats it. Each subpackage covers one subject. `docs/architecture.md` lists them.
"""
