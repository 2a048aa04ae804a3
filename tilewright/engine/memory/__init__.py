"""What holds values, who is alive to read them, and whose reads an update has to respect."""
