"""What every part of the package uses: argument checks, limits, figures, display."""
