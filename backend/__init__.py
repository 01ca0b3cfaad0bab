"""The Dynamo backend: entry, options, pipeline, executable, runners and report."""
