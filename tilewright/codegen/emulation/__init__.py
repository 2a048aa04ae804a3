"""Ops and dtypes that a target lacks. In: a kernel of scalar nodes. Out: the same values in ops that the target has."""
