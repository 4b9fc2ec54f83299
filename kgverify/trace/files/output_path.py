"""Checks on the output path of a recording: conflicts, leftovers, and the candidates that are safe in them."""

import shlex
from pathlib import Path

from kgverify.errors import UserError
from kgverify.files.locking import OutputLock, lock_beside
from kgverify.files.writing import describe_write_error, refuse_link, remove_temporary
from kgverify.trace.files.manifest import CODE, MANIFEST, Manifest, check_replaceable, finish_replacing, read_manifest


def partial_of(path: Path) -> Path:
    """Return the folder that holds the shards of a trace until it is complete."""
    return path.with_name(path.name + ".partial")


def lock_trace(path: Path, *, overwrites: bool = True) -> OutputLock:
    """Lock a trace, or a recording that did not finish, and delete what killed processes left of attempts to write it.

    UserError if another process holds the lock; unless `overwrites`, also if there is a trace.
    """
    path = path.with_name(path.name.removesuffix(".partial"))
    if not path.parent.is_dir():
        raise UserError("its folder does not exist", where=str(path), fix=f"create {path.parent} first")
    lock = lock_beside(path, "this trace")
    remove_temporary(path)
    finish_replacing(path, partial_of(path))
    if path.exists() and not overwrites:
        lock.release()
        raise UserError("already exists", where=str(path), fix="choose another path, or overwrite it with --overwrite")
    return lock


def check_output_path(path: Path) -> None:
    """Raise a UserError if no trace can be written to a path."""
    refuse_link(path)
    refuse_link(partial_of(path))
    check_replaceable(path)


def check_no_partial(partial: Path) -> None:
    """Raise a UserError if an unfinished recording exists."""
    if partial.exists():
        raise UserError(
            "a recording that did not finish is in the way",
            where=str(partial),
            fix="resume it, or delete this folder",
        )


def explain_failed_write(what: str, error: OSError, num_safe: int, partial: Path, where: str) -> UserError:
    """Make the error for a failed write, which states the candidates that are safe."""
    reason = describe_write_error(error, partial.parent)
    safe = f"the first {num_safe:,} candidates are safe in {partial}" if num_safe else "nothing was safe yet"
    return UserError(
        f"{what} cannot be written: {reason}; {safe}",
        where=where,
        fix="make room, or see to the permissions; then resume the recording"
        + (f", or keep what there is: kgverify trace repair {shlex.quote(str(partial))}" if num_safe else ""),
    )


def count_safe(partial: Path) -> tuple[int, int]:
    """Count the candidates and steps that are committed in an unfinished recording."""
    try:
        manifest = read_manifest(partial)
    except UserError:
        return 0, 0
    return manifest.num_candidates, manifest.num_steps


def remove_left_over(folder: Path, manifest: Manifest | None = None) -> None:
    """Remove temporary files and shards that the manifest does not list, which a finished trace does not have."""
    listed = () if manifest is None else tuple(shard.name for shard in manifest.shards)
    for path in [*folder.glob("*.tmp"), *folder.glob("shard-*.h5")]:
        if path.name not in listed:
            path.unlink(missing_ok=True)


def remove_partial(partial: Path) -> None:
    """Remove the folder of a recording that became one file."""
    if partial.is_dir():
        for name in (MANIFEST, CODE):
            (partial / name).unlink(missing_ok=True)
        remove_left_over(partial)
        partial.rmdir()
