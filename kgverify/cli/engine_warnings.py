"""Warnings of engines: each is shown once, after the result."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kgverify.cli.progress import print_warning
from kgverify.errors import first_line

MAX_SHOWN: Final = 20
LOGGERS: Final = (
    "torch._subclasses.fake_tensor",
    "torch._dynamo",
    "torch._dynamo.convert_frame",
    "torch._inductor",
    "torch._inductor.compile_fx",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.select_algorithm",
    "torch._inductor.utils",
)
"""The loggers of torch that print warnings while an engine runs."""


@contextmanager
def warnings_afterwards() -> Iterator[None]:
    """Collect the warnings of Python and of torch until the context ends, and then print each once, with its number."""
    seen: Counter[str] = Counter()

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            seen[f"{record.name}: {first_line(record.getMessage())}"] += 1
        return record.levelno < logging.WARNING

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        seen[f"{category.__name__}: {first_line(str(message))} ({filename}:{lineno})"] += 1

    for name in LOGGERS:
        logging.getLogger(name).addFilter(collect)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]  # the rest of its arguments is not needed
            yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(collect)
        for text, num in list(seen.items())[:MAX_SHOWN]:
            print_warning(text + (f" ({num:,} times)" if num > 1 else ""))
        if len(seen) > MAX_SHOWN:
            print_warning(f"... and {len(seen) - MAX_SHOWN:,} other warnings")
