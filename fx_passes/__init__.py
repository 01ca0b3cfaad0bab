"""Passes over FX graphs: rewrite, canonicalise, fuse, partition. One pass, one file."""
