"""Barriers: inject, collect, commit, publish, recover; and the calls of the workers that run them."""
