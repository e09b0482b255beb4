"""What several coreset methods use: the rows that one starts from, networks trained on it, a pool of them."""
