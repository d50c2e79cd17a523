"""The rows that statements return, each with the names of its columns. The lists of columns are taken from them."""
