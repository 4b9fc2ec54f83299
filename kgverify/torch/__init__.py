"""Other people's torch code while it runs: its arithmetic and its compilations. Imported only if an engine uses torch."""
