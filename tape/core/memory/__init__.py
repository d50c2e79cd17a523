"""What a tape remembers besides messages: state, blocks and usage, and what a store declares of them."""
