"""The source for one form of call."""
