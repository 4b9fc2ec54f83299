"""The `kgverify audit` commands: is it the compiler, and which property was lost?"""

from typing import Final

from kgverify.cli.audit.step import audit_step

COMMANDS: Final = {"step": audit_step}
