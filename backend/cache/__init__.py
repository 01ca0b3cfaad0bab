"""What compilation made, kept on disk between processes: `Cache.get_or_make`.

`entries.py` is the file of one entry, `folder.py` the folder with its bound and its rights,
`turns.py` lets one process compute what several ask for, `cache.py` puts them together;
`predictions.py`, `plans.py`, `sources.py` and `findings.py` say what is kept and under which keys.
"""
