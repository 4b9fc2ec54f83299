"""The conditions of causes, in terms of features of the instances that went wrong and of neighbours that did not. Internal."""
