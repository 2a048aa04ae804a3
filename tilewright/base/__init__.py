"""What every other folder stands on: errors, options, events and the small records shared by all stages.

Nothing comes in but the standard library; the names here are imported by every folder to the right of it.
"""
