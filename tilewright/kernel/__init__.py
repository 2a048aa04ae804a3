"""The kernel stage: the loops of one kernel are split and given roles. Entry: `optimise.optimise`."""
