"""Loaded by Python at its start where this folder is on PYTHONPATH: breaks the package as TILEWRIGHT_PLANT says. So the
package holds no bug of its own, and every process that a debugged program or the debugger starts is broken alike. A bug
that cannot be planted ends the process: Python itself would print the error and go on with a package that is right."""

import os
import sys

if os.environ.get("TILEWRIGHT_PLANT"):
    sys.path.insert(0, os.environ["TILEWRIGHT_PLANT_ROOT"])
    from tests.debug.planted.bugs import STALE_STATUS, plant

    try:
        plant(os.environ["TILEWRIGHT_PLANT"])
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(STALE_STATUS)
