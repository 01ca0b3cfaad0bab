"""Instructions as data: declarations, the table of what was recorded, loops, Programs."""
