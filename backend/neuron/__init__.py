"""The runner `neuron`: a plan as one graph for TorchNeuron.

`stack.py` says what is installed, `choice.py` which runner that means, `host_view.py` lets the
passes see a graph of the device as one in host memory, `graph.py` writes the graph that is handed
over, `kernel_form.py`, `region_op.py` and `native.py` its NKI ops, `executable.py` calls it. All
follows the documentation of AWS Neuron SDK 2.33 and is tested against fakes; no device has
confirmed it (`docs/trainium.md`). `doctor.py` is the command `trnx doctor`.
"""
