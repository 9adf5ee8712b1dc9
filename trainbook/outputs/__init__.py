"""What a run leaves: its summary, figures, tables, the archive, and copies for trackers."""
