"""Search, without a database: the tokenizer of texts and queries."""
