"""The command line: `tilewright`, or `python -m tilewright`. Where a program starts, so nothing imports it."""
