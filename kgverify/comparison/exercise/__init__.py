"""What a comparison exercised, and the minimum that AGREE requires."""
