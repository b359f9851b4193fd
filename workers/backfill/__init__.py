"""Pure decisions of scans: positions, marking, paging, finishing, throttle budget."""
