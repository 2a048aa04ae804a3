"""Loaded by Python at its start where this folder is on PYTHONPATH: breaks the package as TILEWRIGHT_PLANT says. So the
package holds no bug of its own, and every process that a debugged program or the debugger starts is broken alike."""

import os
import sys

if os.environ.get("TILEWRIGHT_PLANT"):
    sys.path.insert(0, os.environ["TILEWRIGHT_PLANT_ROOT"])
    from tests.debug.planted.bugs import plant

    plant(os.environ["TILEWRIGHT_PLANT"])
