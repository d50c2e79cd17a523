"""Drawings: from numbers and lanes to the elements of an SVG. Pure, and tested without a browser."""
