"""The leader's chores beside the barriers: workers, limits that adapt, what can be tidied up."""
