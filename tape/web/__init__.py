"""The inspector: tapes as pages in a browser, as one HTML file, and in notebooks.

Pages are functions over the public calls of a store and return plain data. The scripts in ``static`` draw that data,
as text and never as markup. The server needs the extra ``web``; the report and notebooks need nothing.
"""
