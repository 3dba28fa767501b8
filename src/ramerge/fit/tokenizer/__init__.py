"""Tokenizer files, read and written as JSON: whose tokens with which ids, and who agrees with whom."""
