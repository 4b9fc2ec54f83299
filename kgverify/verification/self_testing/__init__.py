"""The self-test of a comparison: before a verdict it must see planted changes, give known answers and bear a second opinion."""
