"""The user's line. In: the frames of the running thread. Out: file and line of the innermost one outside the package.
Errors name this line, and every node keeps the line that made it."""

from __future__ import annotations

import os
import sys

Location = tuple[str, int]

# The code object's own spelling of the path is used, because frames are compared by that spelling.
PACKAGE_FOLDER = os.path.dirname(os.path.dirname((lambda: None).__code__.co_filename)) + os.sep
_PACKAGE_NAME = __name__.partition(".")[0]
_LIBRARY_FOLDER = os.path.dirname(os.__file__)
# Decorators and context managers put frames of these files between the user's code and the package; they are skipped.
_SKIPPED_FILES = (
    PACKAGE_FOLDER,
    "<frozen ",
    os.path.join(_LIBRARY_FOLDER, "contextlib.py"),
    os.path.join(_LIBRARY_FOLDER, "functools.py"),
)
_skipped: set[str] = set()  # the files of those that were met, whose names are looked up faster


def user_location() -> Location | None:
    """Return the file and line of the innermost frame outside the package, or None where there is none.

    Costs about a microsecond, so every tensor operation may call it.
    """
    frame = sys._getframe(1)
    while True:
        filename = frame.f_code.co_filename
        if filename not in _skipped:
            if filename.startswith(_SKIPPED_FILES):
                _skipped.add(filename)
            elif not (filename[0] == "<" and _is_generated(frame.f_globals)):
                return filename, frame.f_lineno
        if frame.f_back is None:
            return None
        frame = frame.f_back


def _is_generated(namespace: dict[str, object]) -> bool:
    """Whether code was compiled from text by the package (a matcher, a dataclass method), not typed at a prompt or
    given to `python -c`."""
    module_name = str(namespace.get("__name__", _PACKAGE_NAME))
    return module_name.partition(".")[0] == _PACKAGE_NAME
