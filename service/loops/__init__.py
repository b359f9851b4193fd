"""Run the ticks of a service: periodically, or when a signal wakes a loop."""
