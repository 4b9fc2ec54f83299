"""Files of a trace on disk: manifest and durable file operations."""
