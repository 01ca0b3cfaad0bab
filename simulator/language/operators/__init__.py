"""The operators of nki.language: `table` says what each is, by `functions` and `reductions`."""
