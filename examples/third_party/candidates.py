"""The candidates that a test triple is ranked among, for libraries that take the scores of one ranking."""


def list_candidates(scores, tests, known):
    """Yield the side of each ranking, the score of its test triple, and those of the triples that are not known."""
    triples = set(map(tuple, known))
    for side, place in (("head", 0), ("tail", 2)):
        for h, r, t in tests:
            others = [(h, r, e) if place else (e, r, t) for e in range(len(scores))]
            yield side, scores[h, r, t], [scores[each] for each in others if each not in triples]
