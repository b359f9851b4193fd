"""Manage jobs from CREATE to DROP: their queue, graphs, actors and progress."""
