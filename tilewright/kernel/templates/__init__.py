"""Templates: which kernels there are, and the plans for each. Entry: `choose.choose_plan`."""
