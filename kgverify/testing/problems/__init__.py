"""Generated problems: small programs with their queries and sizes."""
