"""Running engines on the same candidates, recording them, comparing them, replaying what differs."""
