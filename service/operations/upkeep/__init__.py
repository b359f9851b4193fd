"""Run the chores of services and leader that are independent of barriers: workers, adaptive limits, clean-up."""
