"""The dialects of engines: the choices in which correct engines may differ (docs/semantics.md).

>>> from kgverify.dialects import Dialect, describe_differences
>>> describe_differences(Dialect(), Dialect(memory="set"))
['memory is sequence in the expected dialect and set in the actual one']
"""

from kgverify.api.dialect import propose_dialect, recognise_dialect
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.program.limits import Dialect, describe_differences, read_dialect, write_dialect
from kgverify.testing.dialects.proposal import Proposal
from kgverify.verification.recorded_dialect import RecordedDialect

__all__ = [
    "Dialect",
    "Proposal",
    "RecordedDialect",
    "ReferenceEngine",
    "describe_differences",
    "propose_dialect",
    "read_dialect",
    "recognise_dialect",
    "write_dialect",
]
