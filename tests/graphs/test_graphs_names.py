import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgverify.graphs.formats import plain
from kgverify.graphs.formats.plain import NameColumn

NAMES = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20)


def number(chunks: list[list[str]]) -> tuple[list[int], tuple[str, ...]] | None:
    column = NameColumn()
    numbers = []
    for chunk in chunks:
        encoded = [name.encode() for name in chunk]
        ends = np.cumsum([len(each) + 1 for each in encoded]) - 1
        starts = ends - [len(each) for each in encoded]
        stored = np.frombuffer(b"\n".join(encoded) + bytes(plain.MOST_BYTES), np.uint8)
        found = column.add(stored, starts, ends)
        if found is None:
            return None
        numbers.append(found)
    every = np.concatenate(numbers).astype(np.int32)[:, None]
    found_names = column.finish(every).tobytes().decode()
    return every[:, 0].tolist(), tuple(found_names.removesuffix("\n").split("\n"))


@given(st.lists(st.lists(st.sampled_from(["a", "aa", "é", "longer than eight", ""]) | NAMES, min_size=1), min_size=1))
def test_names_are_numbered_in_the_order_of_their_first_occurrence(chunks: list[list[str]]) -> None:
    every = [name for chunk in chunks for name in chunk]
    different = list(dict.fromkeys(every))
    if max(len(name.encode()) for name in every) <= 64:
        assert number(chunks) == ([different.index(name) for name in every], tuple(different))
    else:
        assert number(chunks) is None


def test_names_that_are_too_long_are_left_to_the_other_reader() -> None:
    assert number([["a" * 64]]) == ([0], ("a" * 64,))
    assert number([["a" * 65]]) is None


def test_names_of_equal_hashes_differ_and_very_many_of_them_are_left_to_the_other_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "_FACTORS", np.zeros(8, np.uint64))
    assert number([["a", "b", "a"], ["b", "c"]]) == ([0, 1, 0, 1, 2], ("a", "b", "c"))
    assert number([[str(i) for i in range(plain._MOST_PROBES + 2)]]) is None


def test_the_table_grows_with_the_names() -> None:
    every = [str(i) for i in range(5 * plain._FEWEST_SLOTS)]
    assert number([every, every[::-1]]) == ([*range(len(every)), *range(len(every))[::-1]], tuple(every))
