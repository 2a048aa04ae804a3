"""Finding the step at fault by experiment. In: a repro file, a script or a test that fails. Out: verdicts with their
evidence, the smallest graph that still fails, the guilty step before and after, and a regression test."""
