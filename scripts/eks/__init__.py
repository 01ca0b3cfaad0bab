"""Trainium jobs on Amazon EKS: one YAML file becomes manifests, checked before a node is paid for.

`trnx eks render|validate|list` contact nothing. Needs the extra `eks`. Imports of trnx: the root of
all errors alone.
"""
