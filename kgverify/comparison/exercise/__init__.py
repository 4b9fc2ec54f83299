"""The exercise of both sides of a comparison, and the minimum that AGREE requires."""
