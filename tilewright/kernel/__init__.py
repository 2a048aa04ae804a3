"""One kernel: its loops are split and given roles. Entry: `optimise.optimise`."""
