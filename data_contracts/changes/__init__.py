"""What a change to a contract or suite means: which data that passed would fail, and the other way round."""
