"""Policies that restrict the number of keys of a Variable."""
