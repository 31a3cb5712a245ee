"""Several methods trained side by side over several seeds, and the report that holds them against each other."""
