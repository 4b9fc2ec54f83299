"""The stable codes of findings: docs/verdicts.md has a section for each, whose anchor is the code."""

from enum import StrEnum
from typing import Final, NewType

Coded = NewType("Coded", str)
"""A text that ends with the code of its finding in square brackets. Only `Code.mark` makes one."""

SECTIONS: Final = "https://kgverify.github.io/kgverify/verdicts/#"
"""The address of the section of a code, without the code in lower case."""


class Code(StrEnum):
    """The code of a kind of finding; it never changes, and is never used for another kind.

    KG1: the class of a difference, with the name of a `DifferenceClass`, or another failure of an engine. KG2: a reason
    for INCONCLUSIVE. KG3: a difference that does not count as a divergence. KG4: a doubt about a graph.
    """

    MISSING = "KG101"
    EXTRA = "KG102"
    REORDERED = "KG103"
    RENAMED = "KG104"
    SUBSTITUTED = "KG105"
    STALE = "KG106"
    FOREIGN = "KG107"
    ROUNDING = "KG108"
    TIE = "KG109"
    CONTENT = "KG110"
    LIMIT = "KG111"
    NUMBER = "KG112"
    OUTCOME = "KG113"
    RANK = "KG114"
    METRIC = "KG115"
    PROOF_LOST = "KG116"
    FALSE_PROOF = "KG117"
    UNSOUND = "KG118"
    MALFORMED = "KG119"
    UNCLASSIFIED = "KG120"
    CRASH = "KG121"
    HANG = "KG122"
    DEATH = "KG123"
    LAW = "KG124"
    LOST = "KG125"
    DOUBLED = "KG126"
    WRONG_RANK = "KG127"

    NOTHING_COMPARED = "KG201"
    TOO_LITTLE_EXERCISED = "KG202"
    SAME_RECORDING = "KG203"
    INCOMPLETE = "KG204"
    OTHER_LIMITS = "KG205"
    OTHER_PROGRAM = "KG206"
    OTHER_POLICY = "KG207"
    OTHER_RUN = "KG208"
    OTHER_DIALECT = "KG209"
    ONLY_DIGESTS = "KG210"
    NOT_DETERMINISTIC = "KG211"
    DEPENDS_ON_BATCH = "KG212"
    AFTER_NEAR_TIES = "KG213"
    CONTRADICTION = "KG214"
    SCORE_ERROR = "KG215"
    REPEATED_CANDIDATES = "KG216"
    STAGE_OUTPUTS = "KG217"
    SEARCH_ENDED = "KG218"
    STEPS_LEFT = "KG219"
    OWN_SCORES = "KG220"
    NOT_CONFIRMED = "KG221"
    NO_GOLDEN = "KG222"
    STALE_GOLDEN = "KG223"
    SILENT_TAP = "KG224"
    DRIFT = "KG225"

    NEAR_TIE = "KG301"
    NAMES = "KG302"
    ORDER = "KG303"
    DUPLICATES = "KG304"

    LIKELY_HEADER = "KG401"
    EMPTY_FILE = "KG402"
    COLUMN_ORDER = "KG403"
    REPEATED_FACT = "KG404"
    RULE_NEVER_APPLIES = "KG405"
    RULE_NOT_ASKED = "KG406"
    UNKNOWN_CONSTANT = "KG407"
    SINGLE_VARIABLE = "KG408"
    LIKELY_CONSTANT = "KG409"
    UNKNOWN_IN_DOMAIN = "KG410"
    SPLITS = "KG411"
    ROWS_CHANGED = "KG412"
    RULES_CHANGED = "KG413"
    FILE_NOT_READ = "KG414"

    def mark(self, text: str) -> Coded:
        """Return a text that ends with this code."""
        return Coded(f"{text} [{self}]")
