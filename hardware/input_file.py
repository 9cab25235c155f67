"""Text of an input file, or one clear error."""

import stat
from pathlib import Path

from hardware.errors import InputError, Problem

MAX_SIZE = 1_000_000
"""Largest input file [bytes] unless the caller allows more."""


def read_text(path: str | Path, *, max_size: int = MAX_SIZE) -> str:
    """The text of a regular UTF-8 file, a byte-order mark removed.

    Raises
    ------
    InputError
        Where there is no such file, it is a folder, pipe or device, cannot be read, is too large, empty or not UTF-8.
    """
    if not str(path).strip():
        raise InputError([Problem(file="''", message="the name of the file is empty")])
    try:
        data = _read_bytes(Path(path), max_size)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError([Problem(file=str(path), message=_reason(error))]) from error
    if not text.strip():
        raise InputError([Problem(file=str(path), message="the file is empty")])
    return text


def _read_bytes(path: Path, max_size: int) -> bytes:
    mode = path.stat().st_mode
    # Asked before opening: the open of a pipe would wait for a writer, a device may never end.
    if not stat.S_ISREG(mode):
        raise ValueError(f"not a regular file{' but a folder' if stat.S_ISDIR(mode) else ''}")
    with path.open("rb") as file:
        data = file.read(max_size + 1)
    if len(data) > max_size:
        raise ValueError(f"the file is larger than {max_size} bytes")
    return data


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text: byte {error.start} cannot be decoded"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)
