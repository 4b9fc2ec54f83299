"""A function without arguments that is sent to workers, and called once in each of their threads."""

import pickle
import threading
import zlib
from collections.abc import Callable
from typing import Any, Final

import xxhash

_LARGE: Final = 1 << 24
"""The size in bytes from which compressing takes longer than sending."""
_COMPRESSED: Final = b"\x78"
"""The first byte of what zlib compresses, which no pickle has."""

_of_thread = threading.local()


class SentMaker:
    """A function that makes an engine, or anything else that work needs, in the form in which workers receive it.

    make:  is pickled, so a function or class of a module with arguments that can be pickled
    share: turns bytes into an argument that an executor delivers as the same bytes; for executors with a better way than
           sending them with every call

    Pass `arguments` first to a function that calls `make_once` with them.
    """

    def __init__(self, make: Callable[[], Any], share: Callable[[bytes], Any] = bytes) -> None:
        content = pickle.dumps(make)
        name = xxhash.xxh3_128_hexdigest(content)
        self.arguments = share(content if len(content) >= _LARGE else zlib.compress(content, level=1)), name


def make_once(content: bytes, name: str) -> Any:
    """Return what the function makes: once for each thread, and kept until another is needed."""
    if getattr(_of_thread, "name", None) != name:
        # What was made before may hold as much memory.
        _of_thread.made = _of_thread.name = None
        is_compressed = content.startswith(_COMPRESSED)
        _of_thread.made = pickle.loads(zlib.decompress(content) if is_compressed else content)()
        _of_thread.name = name
    return _of_thread.made
