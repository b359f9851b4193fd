"""Decide what scans read: positions, marking, pages, throttle budgets and time slices. Pure: no I/O."""
