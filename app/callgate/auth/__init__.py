"""Authentication and limits: clients' keys, rate limits, budgets and admission. Takes keys as values."""
