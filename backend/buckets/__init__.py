"""Sizes go through buckets: one set of kernels serves all sizes of a bucket, padded up to it.

`sizes` says which buckets there are, `conversions` pads and cuts tensors, `numbers` evaluates sizes
for a call, and `specialisation` runs a plan for one set of buckets, padded where
`fx_passes/padding` proves that the results stay as they are, and exact elsewhere.
"""
