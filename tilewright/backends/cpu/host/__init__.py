"""The machine that runs the process: its facts, its processor, its memory."""
