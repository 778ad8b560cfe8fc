"""Which archived frames answer a question: experts that rank, rank fusion, and the gate for now."""
