"""Pure: from what is and what should be to an ordered plan with prices. No I/O, no clock."""
