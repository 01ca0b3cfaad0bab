"""Programs of a grid, and ranks: one thread each, which meet in a fixed order."""
