"""Folders that appear under their name only when they are complete, whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfra._shared.files import is_at

WRITING = ".writing"  # What the name of a folder ends with until it is complete.


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Gives an empty folder to write to, which gets its name when the block ends.

    Bring each file in it to the disk before, as `write_file` does. If the block raises an
    exception, nothing is left. If the process is killed, the folder without its name is left, and
    the next writer removes it.

    Args:
        path: The name. Its parents are made.
        overwrite: Whether the folder may take the place of another one. Then there is a complete
            one of that name at any time.

    Yields:
        The folder, next to its place.

    Raises:
        FileExistsError: If there is something of this name, and `overwrite` is False.
        NotADirectoryError: If it is not a folder.
        BlockingIOError: If another writer is at work.
    """
    target = Path(os.path.abspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    _check_target(target, overwrite)
    folder = target.with_name(target.name + WRITING)
    with contextlib.ExitStack() as locks:
        locks.callback(os.close, _make_locked(folder, target))
        try:
            _empty(folder)
            yield folder
            _sync(folder)
            _check_target(target, overwrite)
            replaces = os.path.lexists(target)
            if replaces:
                # What is there gets the name of the folder, and other writers must not touch it.
                locks.callback(os.close, _locked(target, target))
            _rename(folder, target, replaces)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _sync(target.parent)
        if replaces:
            shutil.rmtree(folder)


def write_file(path: Path, content: bytes) -> None:
    """Writes a new file, and brings it to the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Returns how many bytes may be written to a folder, or to the nearest parent there is."""
    path = Path(os.path.abspath(folder))
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _check_target(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise FileExistsError(
            f"{target} exists. Write to another name, or with overwrite=True take its place."
        )
    if target.is_symlink() or not target.is_dir():
        raise NotADirectoryError(f"{target} is no folder: expected a snapshot to take the place of")


def _make_locked(folder: Path, target: Path) -> int:
    """Makes a folder unless it is there, and returns it open, and locked by this writer."""
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        try:
            file = _locked(folder, target)
        except FileNotFoundError:
            continue  # Another writer has ended just now.
        if is_at(file, folder):
            return file
        os.close(file)


def _locked(folder: Path, target: Path) -> int:
    """Opens a folder, and locks it. Raises BlockingIOError if another writer has locked it."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            message = f"another writer is at work on {target}"
            raise BlockingIOError(errno.EWOULDBLOCK, message) from None
        raise
    return file


def _empty(folder: Path) -> None:
    """Removes what a writer that was killed has left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


_AT_FDCWD = -100
_NO_REPLACE, _EXCHANGE = 1, 2  # Flags of renameat2.


def _rename(folder: Path, target: Path, exchange: bool) -> None:
    """Gives the folder its name. With `exchange`, what had that name gets the one of the folder."""
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        names = os.fsencode(folder), os.fsencode(target)
        flag = _EXCHANGE if exchange else _NO_REPLACE
        if function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], flag) == 0:
            return
        error = ctypes.get_errno()
        if error not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(error, os.strerror(error), str(target))
    # File systems that can't do it: with `exchange`, there is a moment without the name.
    before = folder.with_name(folder.name + ".before")
    if exchange:
        target.rename(before)
    folder.rename(target)
    if exchange:
        before.rename(folder)
