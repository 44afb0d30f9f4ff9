"""Tables whose rows are in a store of the user."""
