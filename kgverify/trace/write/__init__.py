"""Write traces."""
