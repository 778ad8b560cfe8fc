"""A synthetic world with known answers: patrol streams and questions about them."""
