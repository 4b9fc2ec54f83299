"""Step through the divergences of a saved run in a terminal."""
