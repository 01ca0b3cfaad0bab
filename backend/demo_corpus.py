"""The sentences of `trnx demo`: a query, and passages whose similarity to it is well apart."""

from __future__ import annotations

QUERY = "How do I train a neural network faster on custom accelerator hardware?"

PASSAGES = (
    "Specialised chips with systolic arrays shorten the training time of deep neural networks.",
    "A compiler for machine learning fuses operations into kernels that run on the accelerator.",
    "Large batches and mixed precision make better use of the matrix units during training.",
    "The graph of a neural network is cut into regions, and each runs as one launch on the chip.",
    "Attention lets every token of a sentence look at all the others.",
    "Simulation on a laptop finds memory errors long before the job reaches the cluster.",
    "The committee moved the budget meeting to the second Thursday of next month.",
    "Knead the dough, let it rest under a damp cloth until it doubles, and bake it until golden.",
    "Storks return to the river meadows in March, when the first frogs begin to call.",
    "Her violin was made in Cremona and still carries the varnish of its maker.",
    "Heavy rain is expected along the coast, with gusts of ninety kilometres an hour.",
    "The museum keeps a letter in which the painter asks his brother for more yellow.",
    "Put the bicycle chain on the largest sprocket before you take out the rear wheel.",
    "The referee gave a penalty in the last minute, and the keeper saved it with his foot.",
    "Interest rates stayed where they were, and the bond market hardly moved.",
)
