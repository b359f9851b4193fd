"""What each page shows: a function that reads, and pure functions that make plain values of it."""
