"""Lookups that gradients flow from."""
