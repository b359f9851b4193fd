"""Inject, collect, commit and publish barriers, recover graphs, and serve the calls of workers."""
