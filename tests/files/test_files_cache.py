"""Caches believe their owner only: nobody else may own, write or replace a file or a folder above it."""

import os
import tempfile
from pathlib import Path

import pytest

from kgverify import UserError
from kgverify.files.code_identity import is_private, open_private

NOBODY = 65534


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


@pytest.mark.parametrize("num_above", [0, 1, 2])
def test_a_file_is_believed_unless_others_can_write_replace_or_own_it(kept: Path, num_above: int) -> None:
    assert is_believed(kept)
    assert is_private(kept.parent)
    place = [kept, *kept.parents][num_above]
    mode = place.stat().st_mode
    for other in (0o777, 0o770, 0o702):
        place.chmod(other)
        assert not is_believed(kept)
    place.chmod(mode)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
        assert not is_believed(kept)


def test_a_file_below_a_folder_for_everybody_whose_names_only_owners_change_is_believed(kept: Path) -> None:
    kept.parents[1].chmod(0o1777)
    assert is_believed(kept)


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_compiled_code_and_precompiled_headers_are_taken_from_no_folder_that_others_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pytest.importorskip("torch._inductor.config")
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    from kgverify.prover.execution.compilation import compile_function

    monkeypatch.setenv("KGVERIFY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for mode, is_ours in ((0o700, True), (0o777, False)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        folder = Path(default_cache_dir())
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
        with config.patch(cpp_cache_precompile_headers=True):
            compile_function(lambda value: value, "default")
            assert config.cpp_cache_precompile_headers is is_ours
        assert Path(cache_dir()) == (folder if is_ours else tmp_path / "cache" / "inductor")
