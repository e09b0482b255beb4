"""What the stages of a row have in common: its fit, its records, what is tracked of it, the model it logs."""
