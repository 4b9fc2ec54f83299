"""Caches believe their owner only: nobody else may own, write or replace a file or a folder above it."""

import os
from pathlib import Path

import pytest

from kgverify import UserError
from kgverify.files.code_identity import is_private, open_private

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "above" / "cache" / "kept"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"kept")
    return path


def is_believed(path: Path) -> bool:
    try:
        with open_private(path, purpose="a library") as descriptor:
            return os.read(descriptor, 9) == b"kept"
    except UserError:
        return False


def test_a_file_of_its_owner_is_believed(kept: Path) -> None:
    assert is_believed(kept)
    assert is_private(kept.parent)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
@pytest.mark.parametrize("num_above", [0, 1, 2])
def test_a_file_that_others_can_write_or_replace_is_not_believed(kept: Path, mode: int, num_above: int) -> None:
    [kept, *kept.parents][num_above].chmod(mode)
    assert not is_believed(kept)


@AS_ROOT
@pytest.mark.parametrize("num_above", [0, 1, 2])
def test_a_file_that_others_own_or_whose_folders_others_own_is_not_believed(kept: Path, num_above: int) -> None:
    os.chown([kept, *kept.parents][num_above], NOBODY, NOBODY)
    assert not is_believed(kept)


def test_a_file_below_a_folder_for_everybody_whose_names_only_owners_change_is_believed(kept: Path) -> None:
    kept.parents[1].chmod(0o1777)
    assert is_believed(kept)
