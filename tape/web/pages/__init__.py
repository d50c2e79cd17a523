"""The pages: each a function from what is asked for to plain data, which is the page's JSON and what is drawn."""
