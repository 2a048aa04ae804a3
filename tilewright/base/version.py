"""The version of the package, written once: packaging, `tilewright.__version__` and `tilewright --version` read it."""

__version__ = "0.1.0"
