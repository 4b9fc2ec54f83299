"""Small-scope certificates: compare engines on every program up to a size."""
