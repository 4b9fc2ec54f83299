"""Compare two traces on disk in bounded memory."""
