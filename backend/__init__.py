"""trnx."""
