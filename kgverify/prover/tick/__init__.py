"""The tick of the batch: slots, the pool of candidates, and the loop around them."""
