"""Looking at what the compiler did. `explain(tensor)` shows every stage of one expression; the option DEBUG prints events
as they happen (printer.py). Comes in: tensors and events. Goes out: records and text. Imported by nothing in the package."""

from tilewright.debug.explain import ExplainedKernel, Explanation, explain

__all__ = ["ExplainedKernel", "Explanation", "explain"]
