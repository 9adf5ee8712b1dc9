"""What a run says of itself: tables, plots, progress, the archive."""
