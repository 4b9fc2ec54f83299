"""Files of a trace on disk: manifest, journal and durable file operations."""
