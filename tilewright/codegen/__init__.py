"""From an optimised kernel to a linear program. Entry: `pipeline.lower`."""
