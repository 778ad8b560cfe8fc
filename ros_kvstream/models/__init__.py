"""One interface over the model families; each file one family."""
