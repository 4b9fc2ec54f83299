"""The probability that chance separates two groups, corrected for the number of conditions tried.

If nothing distinguishes what went wrong from the rest, every choice of as many instances is equally likely to be the wrong one.
The distribution over all these permutations is known in closed form (Fisher's exact test), and none has to be drawn. Times the
number of conditions tried, it bounds the probability that any of them does as well by chance (Bonferroni's correction).
"""

import math
from typing import Final

MOST_CHANCE: Final = 0.01
"""The largest probability of chance with which a condition is stated."""


def chance_of(num_wrong: int, num_right: int, wrong_inside: int, right_inside: int, num_tried: float) -> float:
    """Return the bound on the probability of a condition that holds for some of the wrong and of the right instances."""
    num, inside = num_wrong + num_right, wrong_inside + right_inside
    terms = [
        _log_choose(inside, k) + _log_choose(num - inside, num_wrong - k) - _log_choose(num, num_wrong)
        for k in range(wrong_inside, min(inside, num_wrong) + 1)
        if num_wrong - k <= num - inside
    ]
    if not terms or num_tried <= 0:
        return 1.0
    largest = max(terms)
    logarithm = largest + math.log(sum(math.exp(term - largest) for term in terms)) + math.log(num_tried)
    return min(1.0, math.exp(min(0.0, logarithm)))


def _log_choose(num: int, chosen: int) -> float:
    return math.lgamma(num + 1) - math.lgamma(chosen + 1) - math.lgamma(num - chosen + 1)
