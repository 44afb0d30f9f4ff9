"""Snapshots as folders: their manifest, and how they are written."""
