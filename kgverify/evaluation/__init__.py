"""Large evaluations: many candidates ranked without recording their steps."""
