"""Random operations of many threads on every kind of table, checked against oracles."""
