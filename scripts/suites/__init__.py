"""Suites of models that scripts measure: named cases, each of which builds a model with inputs."""
