"""Internal: other people's torch code while it runs, its arithmetic and its compilations. Imported only if torch is."""
