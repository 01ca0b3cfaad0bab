"""`trnx plan`: does a model fit, how fast is it and what does it cost, per mesh, from shapes alone.

description (what the model is) -> mesh, cluster -> memory, time -> search -> report, job file.
"""
