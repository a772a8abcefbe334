"""What CodeHub decides: pure functions over facts. No I/O, no clock, no logging."""
