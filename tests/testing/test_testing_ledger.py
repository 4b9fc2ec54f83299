"""The ledger of finished work: records survive, a torn last line does not, and other work is refused."""

import msgspec
import pytest

from kgverify import UserError
from kgverify.runs import ledger
from kgverify.runs.ledger import Ledger, WorkIdentity


class Work(WorkIdentity, frozen=True, omit_defaults=True):
    """The identity of the work."""

    name: str
    block_size: int = 10


class Done(msgspec.Struct):
    """A record of the work."""

    number: int


def open_ledger(path, name="count", block_size=10, *, code=None, **options):
    return Ledger(path, Work(name, block_size, code=code or {}), Done, title="log of a test", **options)


def test_records_of_other_code_are_kept_where_it_is_accepted(tmp_path):
    path = tmp_path / "log.jsonl"
    open_ledger(path, code={"helper.py": "1", "numpy": "2"}).add(Done(1))
    resumed = open_ledger(path, code={"helper.py": "3", "numpy": "2"}, accept_changed=["helper.py"])
    assert [each.number for each in resumed.records] == [1]
    again = open_ledger(path, code={"helper.py": "3", "numpy": "2"})
    assert again.accepted == resumed.accepted == ("helper.py changed: 1 there, 3 here",)


@pytest.mark.parametrize("accepted", [(), ("numpy",)])
def test_records_of_other_code_are_dropped(tmp_path, accepted):
    path = tmp_path / "log.jsonl"
    open_ledger(path, code={"helper.py": "1"}).add(Done(1))
    restarted = open_ledger(path, code={"helper.py": "3"}, accept_changed=accepted)
    assert (restarted.records, restarted.changed) == ([], ("helper.py changed: 1 there, 3 here",))
    restarted.add(Done(2))
    again = open_ledger(path, code={"helper.py": "3"})
    assert ([each.number for each in again.records], again.changed, again.accepted) == ([2], (), ())


def test_an_error_of_the_system_is_one_of_the_user(tmp_path, monkeypatch):
    def fail(*given):
        raise OSError(5, "no such disk")

    monkeypatch.setattr(ledger, "write_file", fail)
    with pytest.raises(UserError, match="cannot be used: no such disk"):
        open_ledger(tmp_path / "log.jsonl")


def test_records_are_read_again_and_a_torn_line_is_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    for number in (1, 2):
        open_ledger(path).add(Done(number))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 3')
    ledger = open_ledger(path)
    assert [each.number for each in ledger.records] == [1, 2]
    assert path.read_bytes() == whole
    ledger.add(Done(3))
    assert [each.number for each in open_ledger(path).records] == [1, 2, 3]


def test_a_torn_first_line_is_an_empty_ledger(tmp_path):
    path = tmp_path / "log.jsonl"
    open_ledger(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:7])
    assert open_ledger(path).records == []
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"notes", "is not the log of a test"),
        (b"notes\nof mine\n", "is not the log of a test: "),
        (b'{"name":"count","block_size":10}\n{"number":"x"}\n', "is not the log of a test: "),
        (b'{"name":"other","block_size":10}\n', 'with another name: expected "count", found "other"'),
        (b'{"name":"count","block_size":5}\n', "with another block size: expected 10, found 5"),
    ],
)
def test_other_files_and_other_work_are_refused_and_left_unchanged(tmp_path, content, message):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        open_ledger(path)
    assert raised.value.where == str(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_used_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        open_ledger(tmp_path / "none" / "log.jsonl")
    with pytest.raises(UserError, match="is a folder"):
        open_ledger(tmp_path)
