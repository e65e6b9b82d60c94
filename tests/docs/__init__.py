"""What the pages and the examples say is so."""
