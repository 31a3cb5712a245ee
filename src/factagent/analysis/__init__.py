"""Analysis: tables, figures and pages from a run's files. Everything read here may come from others: it is data."""
