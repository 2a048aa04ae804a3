"""What every other folder uses: errors, options, events and the small records that all stages share.

Nothing comes in but the standard library; the names here are imported by every folder to the right of it.
"""
