"""The report: tapes as one HTML file that needs no server and loads nothing, and the same pages in notebooks."""
