"""Internal: other people's torch code while it runs and its arithmetic. Imported only if torch is."""
