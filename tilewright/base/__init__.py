"""What every other folder uses: errors, options, events and the small records that all stages share.

It imports the standard library alone and is imported by every other folder."""
