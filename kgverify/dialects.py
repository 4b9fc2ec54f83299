"""The dialects of engines: the choices in which correct engines may differ (docs/semantics.md).

>>> from kgverify.dialects import Dialect, describe_differences
>>> describe_differences(Dialect(), Dialect(memory="set"))
['memory is sequence in the expected dialect and set in the actual one']
"""

from kgverify.api.dialect import propose_dialect
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.program.limits import Dialect, describe_differences, read_dialect, write_dialect
from kgverify.testing.dialects.proposal import Proposal

__all__ = [
    "Dialect",
    "Proposal",
    "ReferenceEngine",
    "describe_differences",
    "propose_dialect",
    "read_dialect",
    "write_dialect",
]
