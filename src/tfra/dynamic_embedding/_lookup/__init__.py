"""Lookups of which gradients can be taken."""
