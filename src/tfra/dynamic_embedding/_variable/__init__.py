"""Variables whose rows are found by key."""
