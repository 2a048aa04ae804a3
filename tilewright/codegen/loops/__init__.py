"""Loop nests. In: an optimised kernel. Out: its loops cut for speed and accuracy, and at the end a linear body."""
