"""Asking what users gave: the health checks of their own services."""
