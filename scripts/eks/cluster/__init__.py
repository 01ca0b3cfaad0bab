"""What talks to a cluster or to AWS. Nothing else of `trnx.eks` imports from here but its commands.

Every request has a timeout, every failure a named error with its fix; waits end by themselves.
"""
