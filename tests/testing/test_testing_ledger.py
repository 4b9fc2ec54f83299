"""The ledger of finished work, a format on disk: records survive, a torn last line does not, and other work is refused."""

import msgspec
import pytest

from kgverify import UserError
from kgverify.runs import ledger
from kgverify.runs.ledger import Ledger, WorkIdentity


class Done(msgspec.Struct):
    """A record of the work."""

    number: int


class Work(WorkIdentity, frozen=True, omit_defaults=True):
    """The identity of the work."""

    name: str
    block_size: int = 10
    last: Done = msgspec.field(default_factory=lambda: Done(0))


def open_ledger(path, name="count", block_size=10, *, code=None, **options):
    return Ledger(path, Work(name, block_size, code=code or {}), Done, title="log of a test", **options)


def numbers(found: Ledger) -> list[int]:
    return [each.number for each in found.records]


def test_records_of_other_code_are_kept_where_it_is_accepted_and_dropped_otherwise(tmp_path):
    path, change = tmp_path / "log.jsonl", ("helper.py changed: 1 there, 3 here",)
    before, after = {"helper.py": "1", "numpy": "2"}, {"helper.py": "3", "numpy": "2"}
    open_ledger(path, code=before).add(Done(1))
    accepted = open_ledger(path, code=after, accept_changed=["helper.py"])
    assert (numbers(accepted), accepted.accepted) == ([1], change)
    again = open_ledger(path, code=after)
    assert (numbers(again), again.accepted) == ([1], change)
    for names in ((), ("numpy",)):
        path.unlink()
        open_ledger(path, code=before).add(Done(1))
        restarted = open_ledger(path, code=after, accept_changed=names)
        assert (restarted.records, restarted.changed) == ([], change)
        restarted.add(Done(2))
        again = open_ledger(path, code=after)
        assert (numbers(again), again.changed, again.accepted) == ([2], (), ())


def test_records_are_read_again_and_a_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    first = open_ledger(path)
    header = path.read_bytes()
    path.write_bytes(header[:7])
    assert open_ledger(path).records == first.records == []
    assert path.read_bytes() == header
    for number in (1, 2):
        open_ledger(path).add(Done(number))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 3')
    found = open_ledger(path)
    assert numbers(found) == [1, 2]
    assert path.read_bytes() == whole
    found.add(Done(3))
    assert numbers(open_ledger(path)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"notes", "is not the log of a test"),
        (b"notes\nof mine\n", "is not the log of a test: "),
        (b'{"name":"count","block_size":10}\n{"number":"x"}\n', "is not the log of a test: "),
        (b'{"name":"other","block_size":10}\n', 'with another name: expected "count", found "other"'),
        (b'{"name":"count","block_size":5}\n', "with another block size: expected 10, found 5"),
        (b'{"name":"count","last":{"number":4}}\n', 'with another last: expected {"number":0}, found {"number":4}'),
    ],
)
def test_other_files_and_other_work_are_refused_and_left_unchanged(tmp_path, content, message):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        open_ledger(path)
    assert raised.value.where == str(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_used_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="cannot be written"):
        open_ledger(tmp_path / "none" / "log.jsonl")
    with pytest.raises(UserError, match="is a folder"):
        open_ledger(tmp_path)

    def fail(*given):
        raise OSError(5, "no such disk")

    monkeypatch.setattr(ledger, "write_file", fail)
    with pytest.raises(UserError, match="cannot be used: no such disk"):
        open_ledger(tmp_path / "log.jsonl")
