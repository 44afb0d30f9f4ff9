"""Rules for which rows leave a Variable."""
