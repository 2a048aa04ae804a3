"""Looking at what the compiler did. In: tensors and events. Out: records and text. Imported by nothing in the package.
`explain(tensor)` shows every stage of one expression; the option DEBUG prints events as they happen (printer.py)."""

from tilewright.debug.explain import Explanation, explain
from tilewright.debug.explained import ExplainedKernel
from tilewright.debug.watch import KernelRun, watch_runs

__all__ = ["ExplainedKernel", "Explanation", "KernelRun", "explain", "watch_runs"]
