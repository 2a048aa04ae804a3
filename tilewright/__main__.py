"""`python -m tilewright` is the command `tilewright`. In: the arguments of the process. Out: what it prints."""

from tilewright.cli.main import main

main()
