"""The conditions of causes: features of what went wrong and of its neighbours that did not. Internal."""
