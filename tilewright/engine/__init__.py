"""Joins the stages: compilation, planning, execution, jit. The only folder that imports them all."""
