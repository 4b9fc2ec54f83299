"""Reading and writing files: one way in, one way out."""
