"""The parts of `tfra.Table`."""
