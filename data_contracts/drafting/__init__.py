"""A first contract from the data themselves: what was seen, and what is left to the person."""
