"""Faults of `small_engine.py`: in each, one line is replaced by another one. They were written before kgverify saw any."""

FAULTS = {
    "select the last atom": ("select", "return goal[0]", "return goal[-1]"),
    "skip the first rule": ("match_rules", "rules = self.rules", "rules = self.rules[1:]"),
    "match rules backwards": (
        "match_rules",
        "matching = [rule for rule in rules if",
        "matching = [rule for rule in rules[::-1] if",
    ),
    "match only the first facts": ("match_facts", "facts = self.facts", "facts = self.facts[:12]"),
    "use the excluded fact": ("match_facts", "for fact in facts if fact.head != excluded]", "for fact in facts]"),
    "match facts backwards": ("match_facts", "for fact in usable if", "for fact in usable[::-1] if"),
    "reverse the body": ("resolve", "for atom in clause.body]", "for atom in clause.body[::-1]]"),
    "leave the other atoms unbound": ("resolve", "[bind(atom, bound) for atom in rest]", "[*rest]"),
    "put the body last": ("resolve", "(clause, body + others)", "(clause, others + body)"),
    "prune the excluded atom": ("prune", " if atom not in known or atom == excluded)", " if atom not in known)"),
    "prune nothing": ("prune", "known = {fact.head for fact in self.facts}", "known = set()"),
    "number variables from two": ("rename", "-1 - len(names)", "-2 - len(names)"),
    "give all variables one name": ("rename", "-1 - len(names)", "-1"),
    "remember only the last goal": ("revisit", "seen = set(visited)", "seen = set(visited[-1:])"),
    "forget visited goals": ("revisit", "seen = set(visited)", "seen = set()"),
    "take the last proof": ("close", "proofs[:1] or", "proofs[-1:] or"),
    "keep other goals beside a proof": ("close", "return proofs[:1] or marked", "return marked"),
    "keep one resolvent too few": ("limit", "kept = short[:most]", "kept = short[: most - 1]"),
    "drop goals as long as the limit": ("limit", "<= most_atoms", "< most_atoms"),
    "weigh variables too much": ("score", "len(variables) / 64", "len(variables) / 2"),
}
"""The function in which each fault is, the text of its line that is replaced, and its replacement."""
