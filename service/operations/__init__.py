"""Implement the verbs of the control plane. Each reads, decides and records in one transaction.

Effects outside the database happen after the commit. They are repeatable, because the next tick finds an effect undone
and does it again. A room holds one subject; `docs/architecture.md` lists them.
"""
