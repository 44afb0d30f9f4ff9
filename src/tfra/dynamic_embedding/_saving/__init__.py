"""The content of tables: as tensors, as arrays, in files."""
