"""Reports as one self-contained HTML page: `trnx explain --html`, `trnx profile --html`.

`page.py` is the document with its style and script, `drawings.py` draws SVG, `reports.py` makes the
pages of what `to_dict` gives. A page embeds that data, and shows nothing else.
"""
