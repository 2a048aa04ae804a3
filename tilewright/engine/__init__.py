"""Joins the stages: compile, realize, jit. The only folder that imports them all."""
