"""The public tests of tinygrad, run against Tilewright: `alias` gives the package its name, `classes` sorts what fails.
In a checkout of tinygrad without its package (`rm -r tinygrad`), with this folder's parent in PYTHONPATH:

    python -m pytest -p tools.peer_suite.alias -p tools.peer_suite.classes -q test/backend/test_ops.py ...

Nothing of tinygrad is needed by Tilewright or its tests; docs/measurements/peer_suite.md has the last run."""
