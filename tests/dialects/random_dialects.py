"""Dialects drawn at random."""

import random
from collections.abc import Callable
from typing import Any

import kgreference


def random_dialect(rng: random.Random, make: Callable[..., Any] = kgreference.Dialect, num_flips: int = 13) -> Any:
    """Return a dialect with up to some switches at random, and the others at their defaults."""
    filters = list(kgreference.Filter)
    rng.shuffle(filters)
    drawn = {
        "unification": rng.choice(list(kgreference.Unification)),
        "order": rng.choice(list(kgreference.Order)),
        "is_reversed": rng.random() < 0.5,
        "exclusion": rng.choice(list(kgreference.Exclusion)),
        "filters": tuple(each for each in filters if rng.random() < (0.25 if each == "duplicates" else 0.9)),
        "long_resolvents": rng.choice(list(kgreference.LongResolvents)),
        "memory": rng.choice(list(kgreference.Memory)),
        "forgets_names": rng.random() < 0.5,
        "exempts_terminal": rng.random() < 0.5,
        "stopping": rng.choice(list(kgreference.Stopping)),
        "skips_unary": rng.random() < 0.5,
        "unproved": rng.choice(list(kgreference.Unproved)),
        "ties": rng.choice(list(kgreference.Ties)),
    }
    names = rng.sample(sorted(drawn), min(num_flips, len(drawn)))
    return make(**{name: drawn[name] for name in names})
