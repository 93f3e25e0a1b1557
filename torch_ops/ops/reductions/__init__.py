"""Ops that combine the entries of a row or a segment."""
